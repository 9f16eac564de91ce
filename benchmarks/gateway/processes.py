"""Starting contestants and servers, each in a session of its own, and ending all that they are."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.gateway import keeper
from deployments.child import signalled_with_parent

ROOT = Path(__file__).parents[2]
PATIENCE_S = 15.0  # for a contestant to end in good order
KILL_S = 30.0  # for what is left of it to be killed
LOG_TAIL = 12


class StartError(RuntimeError):
    """A contestant doesn't start, or gives no right answer. The message says why."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A command, and what its environment has beside this process's own."""

    command: Sequence[str]
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Running:
    """A command that runs under a keeper, which is the root of all that it starts."""

    keeper: "subprocess.Popen[bytes]"
    log: Path

    @property
    def pid(self) -> int:
        return self.keeper.pid

    def refuse_ended(self) -> None:
        """
        Raises:
            StartError: it has ended.
        """
        if self.keeper.poll() is not None:
            raise StartError(f"it ended by itself; its last words:\n{self.tail()}")

    def tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_TAIL:]
        return "\n".join(f"    {line}" for line in lines)


@contextmanager
def running(launch: Launch, log: Path) -> Iterator[Running]:
    """Run a command until the block ends; nothing that it started outlives that, nor this process."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, str(PATIENCE_S), *launch.command],
            cwd=ROOT,
            env=environment() | dict(launch.environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=partial(signalled_with_parent, signal.SIGTERM),
        )
    try:
        yield Running(process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S + KILL_S)


def environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """This process's, without what would lead a contestant away from this machine, or to a Ray that isn't its own."""
    return {
        name: value
        for name, value in environ.items()
        if not name.lower().endswith("_proxy") and not name.startswith(("RAY_", "ENGINEHOUSE_"))
    } | {"PYTHONPATH": str(ROOT)}


def module(name: str, *arguments: object, python: str = sys.executable) -> list[str]:
    """The command of one of this package's programs."""
    return [python, "-m", f"benchmarks.gateway.{name}", *map(str, arguments)]

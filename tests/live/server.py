"""A real server for tests: `enginehouse serve` with Ray's files and ports of its own, stopped by process id only."""

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from tests.waiting import free_port, wait_until

ROOT = Path(__file__).parents[2]
START_S = 600.0  # several engines at once, on a busy machine
STOP_S = 120.0


def read_for(terminal: int, text: str, timeout_s: float) -> str:
    """What a terminal prints until `text` appears in it."""
    output, deadline = "", time.monotonic() + timeout_s
    while text not in output:
        if time.monotonic() > deadline or not select.select([terminal], [], [], timeout_s)[0]:
            raise TimeoutError(f"no {text!r} within {timeout_s:.0f} s in:\n{output}")
        try:
            output += os.read(terminal, 4096).decode(errors="replace")
        except OSError as error:  # whoever wrote to it has ended
            raise EOFError(f"no {text!r} in all of it:\n{output}") from error
    return output


def has_variable(process: psutil.Process, name: str, value: str) -> bool:
    """Whether it was started with this in its environment. psutil's own stops at a gap, which Ray's titles leave."""
    return f"{name}={value}".encode() in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")


@dataclass
class Server:
    """A running `enginehouse serve`."""

    process: "subprocess.Popen[Any]"
    port: int
    folder: Path  # Ray's files
    output: Path
    seen: dict[int, float] = field(default_factory=dict)  # every process there was: id to start time

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def processes(self) -> list[psutil.Process]:
        """What this server is made of now: its children, and what those let go of but still works in its folder."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid != self.process.pid and self._is_ours(process):
                    found.append(process)
                    self.seen[process.pid] = process.create_time()
            except (psutil.Error, OSError):
                continue
        return found

    def _is_ours(self, process: psutil.Process) -> bool:
        return process.status() != psutil.STATUS_ZOMBIE and has_variable(process, "RAY_TMPDIR", str(self.folder))

    def replicas(self, application: str) -> list[psutil.Process]:
        return self._titled(f"ServeReplica:{application}:")

    def controllers(self) -> list[psutil.Process]:
        """Serve's: one, and while it is replaced two or none."""
        return self._titled("ray::ServeController")

    def kinds(self) -> Counter[str]:
        """How many processes there are of each kind that Serve, an engine or we start; Ray's own come and go."""
        kinds = re.compile(r"ServeReplica:\w+|ServeController|HAProxyManager|ProxyActor|bin/haproxy|EngineCore")
        found = (kinds.search(command) for _, command in self._commands())
        return Counter(match.group() for match in found if match)

    def _titled(self, title: str) -> list[psutil.Process]:
        return [process for process, command in self._commands() if title in command]

    def _commands(self) -> Iterator[tuple[psutil.Process, str]]:
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):  # it has ended since
                yield process, " ".join(process.cmdline())

    def gcs_address(self) -> str:
        matches = (re.search(r"--gcs-address=(\S+)", command) for _, command in self._commands())
        return next(match.group(1) for match in matches if match)

    def listening(self) -> list[tuple[str, str]]:
        """Each process's name, and an address that it listens at."""
        found = []
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):  # it has ended since
                sockets = [each for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]
                found += [(process.name(), each.laddr.ip) for each in sockets]
        return found

    def is_ready(self) -> bool:
        """All pools that the config names are up."""
        try:
            states = httpx.get(f"{self.url}/ready", timeout=5).json()["pools"].values()
        except (httpx.HTTPError, ValueError, KeyError):
            return False
        return bool(states) and all(state == "running" for state in states)

    def wait_until_ready(self) -> None:
        def ready_or_dead() -> bool:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended:\n{self.output.read_text()}")
            return self.is_ready()

        wait_until(ready_or_dead, "all pools up", START_S, pause_s=0.5)

    def stop(self, number: int = signal.SIGINT) -> None:
        """Stop it as an operator would, and kill what is left, so that no test leaves a process to the next."""
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(STOP_S)

    def kill_rest(self) -> list[str]:
        rest = self.processes()
        for process in rest:
            with suppress(psutil.NoSuchProcess):  # it has ended since
                process.kill()
        psutil.wait_procs(rest, timeout=10)
        return [str(process) for process in rest]


@contextmanager
def serving_document(document: Mapping[str, Any], folder: Path) -> Iterator[Server]:
    """Serve a configuration, which may name what is in the tests."""
    path = folder / "served.yaml"
    path.write_text(yaml.safe_dump(dict(document)))
    with serving(path, document["http_options"]["port"], environ={"PYTHONPATH": str(ROOT)}) as server:
        yield server


def deploy(dashboard: str, document: Mapping[str, Any], folder: Path) -> None:
    """`serve deploy`, as an operator changes a running server."""
    file = folder / "deployed.yaml"
    file.write_text(yaml.safe_dump(dict(document)))
    command = [str(Path(sys.executable).parent / "serve"), "deploy", "--address", dashboard, str(file)]
    environ = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, env=environ)
    assert done.returncode == 0, done.stderr


@contextmanager
def serving(
    config: Path,
    port: int | None = None,
    command: list[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Serve `config` until the block ends, by `command` where it isn't to be `enginehouse serve`."""
    # Short, for Unix sockets have to fit into 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="eh-", dir="/tmp"))
    port = port or free_port()
    output = folder / "output.txt"
    command = command or [str(Path(sys.executable).parent / "enginehouse"), "serve", str(config), "--port", str(port)]
    ray = {"RAY_TMPDIR": str(folder), "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    with output.open("w") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=file,
            text=True,
            env={**os.environ, **ray, **(environ or {})},
            start_new_session=True,
        )
    server = Server(process, port, folder, output)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.stop()
        server.kill_rest()
        shutil.rmtree(folder, ignore_errors=True)

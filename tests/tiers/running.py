"""Runs parts, one after the other, each once the machine has room for it, and notes what each took."""

import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

from deployments import environments
from tests.tiers.parts import Part

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
MOST_S = 1200.0  # of a part: what hangs longer is interrupted, and says where it was
LOOK_S = 0.5
AGAIN_S = 5.0
TELL_S = 30.0
NO_TESTS = 5  # pytest's status where nothing was chosen
GB = 2**30

Report = Callable[[str], None]


@dataclass(slots=True)
class Done:
    """What came of a part."""

    tier: str
    name: str
    status: int = 0
    tests: int = 0
    skipped: int = 0
    failed: int = 0
    seconds: float = 0.0
    memory_gb: float = 0.0  # the most that the machine used beyond what it did before
    why: str = ""  # it wasn't run
    failures: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return self.status in (0, NO_TESTS)


def run(tier: str, part: Part, arguments: Sequence[str], report: Report, output: IO[str] | None = None) -> Done:
    """One part. `arguments` go to pytest; what it prints goes to `output`, if that is given."""
    done = Done(tier, part.name)
    if absent := [name for name in part.engines if not environments.environment(name).installed]:
        done.why = f"no {absent[0]} here; run 'enginehouse engines install {absent[0]}'"
        report(f"--- {part.name}: skipped: {done.why}")
        return done
    wait_for_memory(part, report)
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        rest = [*arguments, f"--junitxml={results}"] if part.is_pytest else []
        command = [str(BIN / part.command[0]), *part.command[1:], *rest]
        report(f"--- {part.name}: {' '.join(part.command)} {' '.join(arguments)}")
        began_s = time.monotonic()
        with watched() as looks:
            done.status = _call(command, output)
        done.seconds, done.memory_gb = time.monotonic() - began_s, (max(looks) - looks[0]) / GB
        if results.exists():
            _count(done, results)
    return done


def wait_for_memory(part: Part, report: Report) -> None:
    """Return once so much is free, and say meanwhile what is waited for."""
    told_s = -TELL_S
    while (free := psutil.virtual_memory().available / GB) < part.free_gb:
        if time.monotonic() - told_s >= TELL_S:
            told_s = time.monotonic()
            report(f"--- {part.name} waits: it needs {part.free_gb:g} GB of memory, {free:.1f} are free; {_largest()}")
        time.sleep(AGAIN_S)  # until the next look


def _largest() -> str:
    """The processes that have the most memory."""
    found = []
    for process in psutil.process_iter(["pid", "name", "memory_info"]):
        if process.info["memory_info"] is not None:
            found.append((process.info["memory_info"].rss, process.info["name"], process.info["pid"]))
    return "most have " + ", ".join(f"{name} ({pid}) {rss / GB:.1f} GB" for rss, name, pid in sorted(found)[:-4:-1])


@contextmanager
def watched() -> Iterator[list[int]]:
    """The bytes of memory that the machine uses, at each look until the block ends."""
    looks, ended = [_used()], threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_S):
            looks.append(_used())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield looks
    finally:
        ended.set()
        thread.join()


def _used() -> int:
    memory = psutil.virtual_memory()
    return int(memory.total - memory.available)


def _call(command: Sequence[str], output: IO[str] | None) -> int:
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output) as process:
        try:
            return process.wait(MOST_S)
        except subprocess.TimeoutExpired:
            print(f"stopped after {MOST_S:.0f} s", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            pass  # it got that too
        process.send_signal(signal.SIGINT)
        return process.wait() or 1


def _count(done: Done, results: Path) -> None:
    for case in ElementTree.parse(results).getroot().iter("testcase"):  # noqa: S314 (pytest has just written it)
        done.tests += 1
        done.skipped += case.find("skipped") is not None
        if case.find("failure") is not None or case.find("error") is not None:
            done.failed += 1
            done.failures.append(f"{case.get('classname')}::{case.get('name')}")

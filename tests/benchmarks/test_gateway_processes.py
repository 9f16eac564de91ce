"""What the benchmark starts ends with it, whatever it does."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gateway import processes, usage
from benchmarks.gateway.processes import Launch, StartError, environment, running
from tests.waiting import alive, wait_until

# Starts a process that leaves it and its session, and one that ignores signals; tells their ids; and waits.
ESCAPES = """
import os, pathlib, signal, subprocess, sys, time

sleeper = [sys.executable, "-c", "import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(60)"]
if os.fork() == 0:
    os.setsid()
    escaped = subprocess.Popen(sleeper, start_new_session=True)
    pathlib.Path("escaped.part").write_text(str(escaped.pid))
    os.rename("escaped.part", "escaped")
    os._exit(0)
child = subprocess.Popen(sleeper)
pathlib.Path("child.part").write_text(str(child.pid))
os.rename("child.part", "child")
print("a line for the log", flush=True)
while not os.path.exists("escaped"):  # a contestant that has ended takes with it what hasn't told its id yet
    time.sleep(0.01)
{end}
"""


def launch(folder: Path, end: str) -> Launch:
    code = f"import os\nos.chdir({str(folder)!r})\n" + ESCAPES.replace("{end}", end)
    return Launch([sys.executable, "-c", code])


def pids(folder: Path) -> list[int]:
    files = [folder / "child", folder / "escaped"]
    wait_until(lambda: all(file.exists() for file in files), "both processes")
    return [int(file.read_text()) for file in files]


@pytest.mark.parametrize("end", ["time.sleep(60)", "pass", "signal.signal(2, signal.SIG_IGN); time.sleep(60)"])
def test_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    monkeypatch.setattr(processes, "PATIENCE_S", 0.3)
    with running(launch(tmp_path, end), tmp_path / "log"):
        found = pids(tmp_path)
    assert not any(map(alive, found))


def test_nothing_is_left_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), running(launch(tmp_path, "time.sleep(60)"), tmp_path / "log"):
        found = pids(tmp_path)
        raise KeyboardInterrupt
    assert not any(map(alive, found))


def test_what_a_contestant_lets_go_of_still_counts_as_its_own(tmp_path: Path) -> None:
    with running(launch(tmp_path, "time.sleep(60)"), tmp_path / "log") as process:
        found = pids(tmp_path)
        assert set(found) <= usage.read(process.pid).processes.keys()


def wait() -> None:
    """Run a contestant, for a benchmark that is about to be killed."""
    folder = Path(sys.argv[1])
    with running(launch(folder, "time.sleep(60)"), folder / "log"):
        time.sleep(60)  # until it is killed


def test_nothing_is_left_of_a_benchmark_that_was_killed(tmp_path: Path) -> None:
    command = ["-c", "from tests.benchmarks.test_gateway_processes import wait; wait()", str(tmp_path)]
    with subprocess.Popen([sys.executable, *command], cwd=processes.ROOT) as benchmark:
        found = pids(tmp_path)
        benchmark.kill()
    wait_until(lambda: not any(map(alive, found)), "the end of all that it started")


def test_one_that_ends_by_itself_is_found_with_its_last_words(tmp_path: Path) -> None:
    with running(launch(tmp_path, "pass"), tmp_path / "log") as process:
        wait_until(lambda: process.keeper.poll() is not None, "the end")
        with pytest.raises(StartError, match="a line for the log"):
            process.refuse_ended()


def test_a_command_that_is_not_there_is_found(tmp_path: Path) -> None:
    with running(Launch(["/nowhere/gateway"]), tmp_path / "log") as process:
        wait_until(lambda: process.keeper.poll() is not None, "the end")
        with pytest.raises(StartError, match="No such file"):
            process.refuse_ended()


def test_contestants_are_led_to_no_other_machine_and_to_no_other_ray() -> None:
    given = {"PATH": "/bin", "HTTP_PROXY": "x", "https_proxy": "x", "RAY_ADDRESS": "x", "ENGINEHOUSE_PORT": "1"}
    assert environment(given) == {"PATH": "/bin", "PYTHONPATH": str(processes.ROOT)}

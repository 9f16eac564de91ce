"""The compiled TensorRT-LLM engines of this machine: each is built once, and seen only when it is whole."""

import json
import os
import shutil
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from deployments.child import running
from deployments.exclusive import exclusively
from deployments.settings import cache_dir
from deployments.tensorrt_build import Build, BuildError
from deployments.tensorrt_check import MARKER, check

Report = Callable[[str], None]

REPORT_S = 10.0  # between two lines of progress
WEIGHS = 2.0  # times its checkpoint: an engine, at most
TAIL = 10  # lines of a failed build that are told


def engine_for(build: Build, report: Report, executable: Path) -> Path:
    """The folder of the compiled engine, compiled first where there is none: minutes to hours, told to `report`.

    Whoever else wants the same one meanwhile waits, and fails if that build does.

    Raises:
        BuildError: `trtllm-build` fails, the disk is too full, or what is there isn't for this machine.
    """
    folder = folder_of(build)
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        asked_s = time.time()
        waiting = _Waiting(_beside(folder, ".log"), report)
        with exclusively(_beside(folder, ".lock"), waiting, REPORT_S):
            _raise_failure_since(asked_s, folder)
            if not folder.is_dir():
                _build(build, folder, report, executable)
    check(folder, build.machine, build.tp_size, build.pp_size, f"remove {folder} and start again")
    return folder


def folder_of(build: Build) -> Path:
    return cache_dir() / "tensorrt" / f"{build.name}-{build.key}"


def _beside(folder: Path, suffix: str) -> Path:
    return folder.with_name(folder.name + suffix)


class _Waiting:
    """Tells how far another process's build is, by its log."""

    def __init__(self, log: Path, report: Report) -> None:
        self._log, self._report = log, report
        self._began_s = time.monotonic()

    def __call__(self) -> None:
        try:
            last = self._log.read_text("utf-8", "replace").rstrip().rpartition("\n")[2]
        except OSError:
            last = "it hasn't begun"
        minutes = (time.monotonic() - self._began_s) / 60
        self._report(f"waiting for another build of the same engine, {minutes:.0f} min so far: {last[:200]}")


def _build(build: Build, folder: Path, report: Report, executable: Path) -> None:
    part = _beside(folder, ".part")
    shutil.rmtree(part, ignore_errors=True)  # what a killed build left
    _check_space(build, folder.parent)
    report(f"compiling {folder.name} from {build.checkpoint}; its log: {_beside(folder, '.log')}")
    try:
        _compile(build, part, folder, report, executable)
        marker = {"key": build.key, "machine": asdict(build.machine), "built": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        (part / MARKER).write_text(json.dumps(marker))
        _sync(part)
        part.rename(folder)
    except BuildError as error:
        _beside(folder, ".failed").write_text(json.dumps({"at": time.time(), "why": str(error)}))
        raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _compile(build: Build, part: Path, folder: Path, report: Report, executable: Path) -> None:
    log, tail = _beside(folder, ".log"), deque[str](maxlen=TAIL)
    told_s = time.monotonic()
    with log.open("w") as copy, running(build.command(executable, part)) as process:
        for line in process.stdout or ():
            print(line, end="", file=copy, flush=True)
            tail.append(line.rstrip())
            if time.monotonic() - told_s > REPORT_S:
                told_s = time.monotonic()
                report(tail[-1][:200])
    if process.returncode != 0:
        said = "\n".join(f"  {line[:300]}" for line in tail)
        raise BuildError(
            f"trtllm-build failed with status {process.returncode} on {build.checkpoint}:\n{said}\nThe whole log: {log}"
        )
    if not (part / "config.json").is_file():
        raise BuildError(f"trtllm-build ended well and wrote no engine to {part}. Its log: {log}")


def _raise_failure_since(asked_s: float, folder: Path) -> None:
    """A build that failed while this process waited for it would fail here too, after as long."""
    try:
        failure = json.loads(_beside(folder, ".failed").read_text())
    except (OSError, ValueError):
        return
    if failure["at"] > asked_s:
        raise BuildError(failure["why"])


def _check_space(build: Build, where: Path) -> None:
    needed = WEIGHS * sum(path.stat().st_size for path in build.checkpoint.rglob("*") if path.is_file()) / 1e9
    free = shutil.disk_usage(where).free / 1e9
    if free < needed:
        raise BuildError(
            f"The compiled engine may take {needed:.1f} GB and {where} has {free:.1f} GB free. Free some, or set "
            f"ENGINEHOUSE_CACHE to a folder on a larger disk."
        )


def _sync(folder: Path) -> None:
    """Onto the disk before it gets its name: a machine that loses power must not keep the name of a half engine."""
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

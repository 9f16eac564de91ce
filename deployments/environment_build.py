"""Builds an engine's environment: a virtual environment, its lock through pip, and a marker at the very end."""

import re
import shutil
import subprocess
import sys
import venv
from collections import deque
from pathlib import Path
from typing import TextIO

from deployments import preflight
from deployments.child import running
from deployments.environments import (
    RESOLVED_ON_INSTALL,
    Environment,
    InstallError,
    Report,
    Variant,
    environment,
    pin_lines,
    source_root,
)
from deployments.exclusive import exclusively

NEEDED_GB: dict[Variant, int] = {"cpu": 5, "cuda": 20}  # GB of disk, unpacked, with room for one download

# pip names a file when it starts on it; what it names while it looks for one (`.whl.metadata`) doesn't count.
_FETCHES = re.compile(r"\s*(?:Processing|Downloading|Using cached) (?:.*/)?([\w.]+)-\S+\.(?:whl|tar\.gz|zip)(?: |$)")
_NOT_FOUND = re.compile(r"No matching distribution found for (\S+)")
_NO_CPU_BUILD = re.compile(r"No matching distribution found for (\S+\+cpu)")


def install(engine: str, report: Report) -> Environment:
    """Build the engine's environment unless it is there, telling `report` of each step in a short line.

    Callers in other threads or processes wait for one build. A build takes minutes and gigabytes of disk.

    Raises:
        UnknownEngineError: the engine has no environment.
        InstallError: the machine lacks what the engine needs, its disk is too full, or pip failed.
    """
    engine = engine.replace("-", "_")  # tensorrt-llm is what its package is called
    preflight.refuse_unfit(engine)
    target = environment(engine)
    build(target, report)
    return target


def build(target: Environment, report: Report) -> None:
    """Build `target` unless it is installed. What is in its folder afterwards is its lock, and pip; or, for an engine
    that is resolved on installation, also what its lock's packages ask for.

    Raises:
        InstallError: the disk is too full, or Python's venv or pip failed; no part of the folder is left.
    """
    if target.installed:
        return
    target.folder.parent.mkdir(parents=True, exist_ok=True)
    waiting = f"waiting for another build of {target.folder}"
    with exclusively(target.folder.with_name(f"{target.folder.name}.lock"), lambda: report(waiting)):
        if not target.installed:
            _rebuild(target, report)


def _rebuild(target: Environment, report: Report) -> None:
    shutil.rmtree(target.folder, ignore_errors=True)  # what a killed build left
    _check_space(target)
    report(f"building {target.folder}")
    try:
        _make_venv(target)
        _install_lock(target, report)
        source_root()  # the launcher may run as a user who can't write here
        target.marker.write_text(target.digest)
    except BaseException:
        shutil.rmtree(target.folder, ignore_errors=True)
        raise


def _check_space(target: Environment) -> None:
    needed = NEEDED_GB[target.variant]
    free = shutil.disk_usage(target.folder.parent).free / 1e9
    if free < needed:
        raise InstallError(
            f"The {target.engine} environment needs {needed} GB of disk and {target.folder.parent} has {free:.1f} GB "
            f"free. Free some, or set ENGINEHOUSE_CACHE to a folder on a larger disk."
        )


def _make_venv(target: Environment) -> None:
    # Made from a virtual environment's Python, a new one still gets the interpreter underneath.
    try:
        venv.EnvBuilder(symlinks=True, with_pip=True).create(target.folder)
    except subprocess.CalledProcessError as error:
        raise InstallError(
            f"{sys.executable} can't make a virtual environment with pip in it. On Debian or Ubuntu, install the "
            f"python3-venv package of this Python version."
        ) from error


def _install_lock(target: Environment, report: Report) -> None:
    pins = pin_lines(target.lock)
    with Path(f"{target.folder}.log").open("w") as log:
        if names := RESOLVED_ON_INSTALL.get(target.engine):
            _run_pip(target, [pin for pin in pins if pin.partition("==")[0] in names], None, log, report)
        # What was resolved may not have what the lock has: the lock's is what Ray and we run on.
        _run_pip(target, ["--no-deps", "--only-binary=:all:", "-r", str(target.lock)], len(pins), log, report)
    if names:
        target.versions.write_text(subprocess.check_output(_pip(target, "freeze"), text=True))


def _run_pip(target: Environment, wanted: list[str], total: int | None, log: TextIO, report: Report) -> None:
    """Install what is wanted: that many packages, where it is known."""
    tail = deque[str](maxlen=50)
    fetched = 0
    with running(_pip(target, "install", "--no-input", "--progress-bar=off", *wanted)) as pip:
        for line in pip.stdout or ():
            print(line, end="", file=log, flush=True)
            tail.append(line.strip())
            if match := _FETCHES.match(line):
                fetched += 1
                count = f"{fetched:{len(str(total))}}/{total}" if total else f"{fetched}"
                report(f"[{count}] {match[1].replace('_', '-')}")
            elif line.startswith("Installing collected packages"):
                report(f"unpacking {total or fetched} packages; the log is {log.name}")
    if pip.returncode != 0:
        raise InstallError(_pip_failure(target, list(tail), log.name))


def _pip(target: Environment, *arguments: str) -> list[str]:
    return [str(target.python), "-I", "-m", "pip", "--disable-pip-version-check", *arguments]


def _pip_failure(target: Environment, tail: list[str], log: str) -> str:
    errors = [line for line in tail if line.startswith("ERROR:")] or tail
    shown = "\n".join(f"  {line[:300]}" for line in errors[-5:])
    advice = _advice(target.engine, tail)
    return f"pip could not build the {target.engine} environment:\n{shown}\nThe whole log: {log}\n{advice}"


def _advice(engine: str, tail: list[str]) -> str:
    if engine in RESOLVED_ON_INSTALL and (match := _NOT_FOUND.search("\n".join(tail))):
        return (
            f"{match[1]} comes with {engine}, whose packages are on their maker's own index. Name it, and that of "
            f"PyTorch's CUDA 13 builds, in PIP_EXTRA_INDEX_URL, and run this again; or use an image that has {engine}."
        )
    if match := _NO_CPU_BUILD.search("\n".join(tail)):
        return (
            f"{match[1]} is a CPU build, which PyTorch's CPU wheel index carries. Point pip at an index or a folder "
            f"that has it, e.g. with PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS, and run this again."
        )
    return "Run this again when the cause is gone."

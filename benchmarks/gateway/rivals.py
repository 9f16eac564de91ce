"""The environment of Ray Serve's own rows, and of the plot: built on first use from its lock, `rivals.txt`."""

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

from deployments.child import running
from deployments.exclusive import exclusively
from deployments.settings import cache_dir

LOCK = Path(__file__).with_name("rivals.txt")
LOG_TAIL = 5


class BuildError(RuntimeError):
    """The environment can't be built. The message says why."""


def folder() -> Path:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    digest = hashlib.sha256(LOCK.read_bytes() + version.encode()).hexdigest()
    return cache_dir() / "benchmarks" / f"rivals-{digest[:16]}"


def python() -> str:
    """Its interpreter, built or not."""
    return str(folder() / "bin" / "python")


def build(report: Callable[[str], None]) -> None:
    """Build it unless it is there: some minutes, 1 GB.

    Raises:
        BuildError: Python's venv or pip failed; no part of the folder is left.
    """
    target = folder()
    marker = target / "complete"  # written last
    target.parent.mkdir(parents=True, exist_ok=True)
    with exclusively(target.with_suffix(".lock"), lambda: report(f"waiting for another build of {target}")):
        if marker.exists():
            return
        report(f"building {target} (some minutes, 1 GB; once)")
        shutil.rmtree(target, ignore_errors=True)  # what a killed build left
        try:
            _install(target)
            marker.touch()
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise


def _install(target: Path) -> None:
    try:
        venv.EnvBuilder(symlinks=True, with_pip=True).create(target)
    except subprocess.CalledProcessError as error:
        raise BuildError(f"{sys.executable} can't make a virtual environment with pip in it") from error
    pip = [str(target / "bin" / "python"), "-I", "-m", "pip", "--disable-pip-version-check", "install", "--no-input"]
    with running([*pip, "--progress-bar=off", "--no-deps", "-r", str(LOCK)]) as process:
        output, _ = process.communicate()
    if process.returncode != 0:
        last = os.linesep.join(output.splitlines()[-LOG_TAIL:])
        raise BuildError(f"pip could not install {LOCK.name}:\n{last}")

"""What an engine's environment needs of a machine, looked at before anything is downloaded."""

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from ctypes.util import find_library
from dataclasses import dataclass
from pathlib import Path

from deployments.environments import InstallError

DRIVER = Path("/proc/driver/nvidia/version")
SMI = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
SMI_S = 30.0
CUDA = Path("/usr/local/cuda")  # where CUDA_HOME isn't set

_KERNEL_MODULE = re.compile(r"Kernel Module\b.*?\s(\d+\.[\d.]+)")


@dataclass(frozen=True, slots=True)
class Machine:
    """What is here; None: it was not found."""

    system: str  # as `platform.system` says it
    python: tuple[int, int]
    driver: str | None  # NVIDIA's, as "580.65.06"
    cuda_home: Path
    cuda: str | None  # the toolkit's version in `cuda_home`
    mpi: bool


def refuse_unfit(engine: str) -> None:
    """Return if the engine's environment could run on this machine.

    Raises:
        InstallError: it couldn't: a sentence for each thing that it needs, with what to do.
    """
    if engine in _NEEDS and (lacking := _NEEDS[engine](find_machine())):
        listed = "\n".join(f"  - {sentence}" for sentence in lacking)
        raise InstallError(f"The {engine} environment can't run on this machine; nothing was downloaded:\n{listed}")


def tensorrt_llm_lacks(here: Machine) -> list[str]:
    """What TensorRT-LLM 1.2 needs and isn't here, by its installation guide.

    https://nvidia.github.io/TensorRT-LLM/installation/linux.html
    """
    lacking = []
    if here.system != "Linux":
        lacking.append(f"It runs on Linux, and this is {here.system}.")
    if here.python != (3, 12):
        have = ".".join(map(str, here.python))
        lacking.append(
            f"Its packages are for Python 3.12, and this is {have}; every node of a cluster has the same Python, so "
            "install Enginehouse with 3.12 on all of them, as by 'make install PYTHON=python3.12'."
        )
    if here.driver is None or int(here.driver.partition(".")[0]) < 580:
        have = f"it is {here.driver}" if here.driver else "none is loaded"
        lacking.append(f"CUDA 13 needs an NVIDIA driver of version 580 or later, and {have}.")
    if here.cuda is None or here.cuda.partition(".")[0] != "13":
        have = f"{here.cuda_home} has {here.cuda}" if here.cuda else f"{here.cuda_home} has none"
        lacking.append(f"It needs the CUDA toolkit 13, with CUDA_HOME naming its folder, and {have}.")
    if not here.mpi:
        lacking.append("It needs Open MPI's library; on Debian or Ubuntu: apt-get install libopenmpi-dev.")
    return lacking


_NEEDS: Mapping[str, Callable[[Machine], list[str]]] = {"tensorrt_llm": tensorrt_llm_lacks}


def find_machine() -> Machine:
    home = Path(os.environ.get("CUDA_HOME") or CUDA)
    version = sys.version_info
    return Machine(
        platform.system(),
        (version.major, version.minor),
        _driver(),
        home,
        _toolkit(home),
        find_library("mpi") is not None,
    )


def _driver() -> str | None:
    try:
        told = _KERNEL_MODULE.search(DRIVER.read_text())
    except OSError:
        told = None
    return told[1] if told else _driver_by_smi()


def _driver_by_smi() -> str | None:
    """Where the kernel doesn't tell, as under WSL."""
    try:
        told = subprocess.run(SMI, capture_output=True, text=True, timeout=SMI_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.match(r"\d[\d.]*", told.strip())
    return found[0] if found else None


def _toolkit(home: Path) -> str | None:
    try:
        return str(json.loads((home / "version.json").read_text("utf-8"))["cuda"]["version"])
    except (OSError, ValueError, LookupError, TypeError):
        return None

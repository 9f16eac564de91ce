import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from deployments import environment_build, preflight
from deployments.environments import InstallError, environment
from deployments.preflight import Machine, find_machine, tensorrt_llm_lacks

FIT = Machine("Linux", (3, 12), "580.65.06", Path("/usr/local/cuda"), "13.0.2", mpi=True)
PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 04:00:00 UTC 2025\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (root@host)\n"


def test_a_machine_that_has_everything_lacks_nothing() -> None:
    assert tensorrt_llm_lacks(FIT) == []


@pytest.mark.parametrize(
    ("here", "sentence"),
    [
        (replace(FIT, system="Darwin"), "It runs on Linux, and this is Darwin."),
        (replace(FIT, python=(3, 11)), "Its packages are for Python 3.12, and this is 3.11; .* PYTHON=python3.12'."),
        (replace(FIT, driver="570.86.15"), "CUDA 13 needs an NVIDIA driver of version 580 or later, and it is 570.*"),
        (replace(FIT, driver=None), "CUDA 13 needs an NVIDIA driver of version 580 or later, and none is loaded."),
        (replace(FIT, cuda="12.8.1"), "It needs the CUDA toolkit 13, with CUDA_HOME .* /usr/local/cuda has 12.8.1."),
        (replace(FIT, cuda=None), "It needs the CUDA toolkit 13, with CUDA_HOME .* /usr/local/cuda has none."),
        (replace(FIT, mpi=False), "It needs Open MPI's library; on Debian or Ubuntu: apt-get install libopenmpi-dev."),
    ],
)
def test_each_thing_that_is_lacking_is_one_sentence(here: Machine, sentence: str) -> None:
    (told,) = tensorrt_llm_lacks(here)
    assert re.fullmatch(sentence, told)


@pytest.mark.parametrize("spelling", ["tensorrt_llm", "tensorrt-llm"])
def test_nothing_is_built_where_something_is_lacking(spelling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "find_machine", lambda: replace(FIT, driver=None, mpi=False))
    monkeypatch.setattr(environment_build, "build", lambda target, report: pytest.fail("built"))
    with pytest.raises(InstallError) as caught:
        environment_build.install(spelling, pytest.fail)
    head, *sentences = str(caught.value).splitlines()
    assert head == "The tensorrt_llm environment can't run on this machine; nothing was downloaded:"
    assert [sentence[:11] for sentence in sentences] == ["  - CUDA 13", "  - It need"]


def test_on_a_machine_that_fits_it_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    built = []
    monkeypatch.setenv("ENGINEHOUSE_CACHE", str(tmp_path))
    monkeypatch.setattr(preflight, "find_machine", lambda: FIT)
    monkeypatch.setattr("deployments.environments.machine_variant", lambda: "cuda")
    monkeypatch.setattr(environment_build, "build", lambda target, report: built.append(target))
    environment_build.install("tensorrt-llm", pytest.fail)
    assert built == [environment("tensorrt_llm", "cuda")]


@pytest.mark.parametrize(("told", "driver"), [(PROPRIETARY, "570.86.15"), (OPEN, "580.65.06")])
def test_what_is_here_is_found(told: str, driver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "driver").write_text(told)
    (tmp_path / "version.json").write_text(json.dumps({"cuda": {"name": "CUDA SDK", "version": "13.0.2"}}))
    monkeypatch.setattr(preflight, "DRIVER", tmp_path / "driver")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(preflight, "find_library", lambda name: f"lib{name}.so.40")
    found = find_machine()
    assert found == Machine(sys.platform.capitalize(), sys.version_info[:2], driver, tmp_path, "13.0.2", mpi=True)


@pytest.mark.parametrize(("script", "driver"), [("echo 580.95.05", "580.95.05"), ("echo No devices; exit 9", None)])
def test_where_the_kernel_does_not_tell_nvidia_smi_is_asked(
    script: str, driver: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "DRIVER", tmp_path / "absent")
    monkeypatch.setattr(preflight, "SMI", ("sh", "-c", script))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    found = find_machine()
    assert (found.driver, found.cuda) == (driver, None)

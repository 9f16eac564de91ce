"""What a model's own files say of it, read without an engine and without fetching anything."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployments import models
from deployments.engine import PoolModel

GENERATES = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What serving needs to know; a model that isn't on this machine is taken for a chat model of unknown size."""

    context_length: int | None = None  # tokens that it was trained for
    generates: bool = True  # else it embeds, scores or classifies
    chats: bool = True  # it has a chat template
    sees: bool = False  # it takes images


def read(folder: Path) -> ModelFacts:
    """The facts of the Hugging Face checkpoint in `folder`.

    Raises:
        OSError, ValueError: it has no readable config.json.
    """
    config = _config(folder)
    text = config.get("text_config", config)
    architectures = [name for name in config.get("architectures") or () if isinstance(name, str)]
    length = text.get("max_position_embeddings")
    return ModelFacts(
        context_length=length if isinstance(length, int) else None,
        generates=not architectures or any(name.endswith(GENERATES) for name in architectures),
        chats=_has_chat_template(folder),
        sees="vision_config" in config,
    )


def of(model: PoolModel) -> ModelFacts:
    """The facts of a pool's model, as far as its files are on this machine."""
    folder = models.local_folder(model.source, model.revision)
    try:
        return read(folder) if folder else ModelFacts()
    except (OSError, ValueError):
        return ModelFacts()  # the engine says better what is wrong with it


def quantization(folder: Path) -> str | None:
    """The method that the checkpoint in `folder` was quantized by, in its own words; None: it isn't quantized."""
    config = _config(folder)
    found: Any = config.get("quantization_config") or config.get("compression_config") or {}
    method = found.get("quant_method") or found.get("quant_algo")
    return method.lower() if isinstance(method, str) else None


def pooling(folder: Path) -> str | None:
    """How a sentence encoder's tokens become one vector: `cls_token`, `mean_tokens`, `lasttoken`, ...; None: unsaid.

    Source: sentence-transformers' `Pooling` module, whose config has a flag `pooling_mode_<how>` each.
    """
    try:
        config = json.loads((folder / "1_Pooling" / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    prefix = "pooling_mode_"
    return next((key.removeprefix(prefix) for key, on in config.items() if key.startswith(prefix) and on is True), None)


def compiled_length(engine: Path) -> int | None:
    """The tokens of prompt and answer that a compiled TensorRT-LLM engine was built for; None: it doesn't say.

    Raises:
        OSError, ValueError: it has no readable config.json.
    """
    found = (_config(engine).get("build_config") or {}).get("max_seq_len")
    return found if isinstance(found, int) else None


def eos_token_ids(folder: Path, tokenizer_s: int | None) -> frozenset[int]:
    """All tokens that end an answer: a model's generation_config.json often lists more than its tokenizer has."""
    try:
        stated = json.loads((folder / "generation_config.json").read_text("utf-8")).get("eos_token_id")
    except (OSError, ValueError):
        stated = None
    return token_ids(stated, tokenizer_s)


def token_ids(*sources: int | list[int] | None) -> frozenset[int]:
    """Tokens that are given as one, as several, or not at all."""
    ids: set[int] = set()
    for source in sources:
        ids.update([source] if isinstance(source, int) else source or [])
    return frozenset(ids)


def _config(folder: Path) -> dict[str, Any]:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    if not isinstance(config, dict):
        raise ValueError(f"{folder / 'config.json'} holds no JSON object")
    return config


def _has_chat_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    try:
        return bool(json.loads((folder / "tokenizer_config.json").read_text("utf-8")).get("chat_template"))
    except (OSError, ValueError):
        return False

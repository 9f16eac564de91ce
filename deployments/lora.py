"""Whether a LoRA adapter fits a model: judged by its files' headers, before any engine sees it."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from deployments.errors import ApiError
from deployments.safetensors_header import Shape, Tensor, read_checkpoint, read_header

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
FILES = (CONFIG, WEIGHTS)
PICKLES = ("adapter_model.bin", "adapter_model.pt")  # can run code when they are loaded
MAX_CONFIG_BYTES = 2**20

# Keys of PEFT's LoraConfig that change what an adapter computes and that engines don't implement.
UNSUPPORTED = (
    "bias",
    "use_dora",
    "modules_to_save",
    "lora_bias",
    "layer_replication",
    "trainable_token_indices",
    "alora_invocation_tokens",
    "use_bdlora",
    "use_qalora",
)
PLAIN_DTYPES = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})  # shapes as in the model's code
PACKED = (".qweight", ".weight_packed")  # quantized weights, whose shapes say nothing of the module's

_TENSOR = re.compile(r"(?:base_model\.model\.)?(.+)\.(?:lora_([AB])\.weight|lora_embedding_([AB]))")
_COPIED_EMBEDDING = re.compile(r".*\b(embed_tokens|lm_head)(\.base_layer)?\.weight")  # PEFT may save the base's own
_FUSED_EXPERTS = re.compile(r".*\.experts(\.base_layer)?")  # their tensors hold all experts, in an engine's own layout


class _Config(BaseModel):
    """What serving needs of an adapter_config.json; its other keys are in `model_extra`."""

    model_config = ConfigDict(extra="allow")

    peft_type: str
    r: int = 0
    rank_pattern: dict[str, int] | None = None
    bias: str | None = None
    fan_in_fan_out: bool | None = None  # the base keeps its weights as [in, out]

    @property
    def ranks(self) -> set[int]:
        return {self.r, *(self.rank_pattern or {}).values()}


@dataclass(frozen=True, slots=True)
class _Target:
    """A module that an adapter changes."""

    name: str
    embeds: bool  # it is an embedding, whose A and B are the other way round


def check_adapter(path: Path, base: Path, max_rank: int | None, shown: str) -> None:
    """Return if the adapter in the folder `path` can be served on the model in the folder `base`.

    `max_rank` is the highest rank that the engine takes, None if it doesn't tell. `shown` is the path as errors name
    it.

    Raises:
        ApiError: 400; what is missing, can't be read, isn't supported or doesn't fit.
    """
    check_files(path, shown)
    config = _read_config(path / CONFIG, shown)
    if max_rank is not None and (rank := max(config.ranks)) > max_rank:
        raise refused(f"The adapter '{shown}' has rank {rank}; this pool's engine takes at most {max_rank}.")
    try:
        tensors = read_header(path / WEIGHTS)
    except (OSError, ValueError) as error:
        raise refused(f"The adapter's file '{shown}/{WEIGHTS}' can't be read: {_reason(error)}.") from None
    try:
        weights = read_checkpoint(base)
    except (OSError, ValueError) as error:
        raise refused(f"The pool's model can't be compared with the adapter: {_reason(error)}.") from None
    for problem in _misfits(tensors, weights, config):
        raise refused(f"The adapter '{shown}' doesn't fit this pool's model: {problem}")


def refused(message: str) -> ApiError:
    """The 400 for an adapter that can't be loaded."""
    return ApiError(400, message, param="lora_path", code="invalid_adapter")


def check_files(path: Path, shown: str) -> None:
    """Return if the folder has the files of an adapter; else an `ApiError`, 400."""
    if not os.path.isdir(path):
        raise refused(f"There is no folder '{shown}'.")
    if not os.path.isfile(path / CONFIG):
        raise refused(f"The folder '{shown}' has no {CONFIG}, so it is no LoRA adapter.")
    if not os.path.isfile(path / WEIGHTS):
        pickle = next((name for name in PICKLES if os.path.exists(path / name)), None)
        why = f" {pickle} is a pickle, which can run code: convert it to safetensors." if pickle else ""
        raise refused(f"The folder '{shown}' has no {WEIGHTS}.{why}")


def _read_config(path: Path, shown: str) -> _Config:
    try:
        if os.path.getsize(path) > MAX_CONFIG_BYTES:
            raise ValueError(f"it is larger than {MAX_CONFIG_BYTES} bytes")
        config = _Config.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise refused(f"The adapter's file '{shown}/{CONFIG}' can't be read: {_reason(error)}.") from None
    if config.peft_type != "LORA":
        raise refused(f"The adapter '{shown}' is of type '{config.peft_type[:50]}'; only LORA is served.")
    if min(config.ranks) < 1:
        raise refused(f"The adapter '{shown}' has rank {min(config.ranks)} ({CONFIG}); it must be at least 1.")
    keys = {**(config.model_extra or {}), "bias": config.bias not in (None, "none")}
    if key := next((key for key in UNSUPPORTED if keys.get(key)), None):
        raise refused(f"The adapter '{shown}' uses '{key}' ({CONFIG}), which is not supported.")
    return config


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        details = error.errors(include_url=False)[0]
        return ": ".join([*map(str, details["loc"]), details["msg"]])
    return str(getattr(error, "strerror", None) or error)


def _misfits(tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor], config: _Config) -> Iterator[str]:
    """A sentence for each tensor of an adapter that isn't right for a model with these weights."""
    base = _Base(weights)
    pairs: dict[_Target, dict[str, str]] = {}
    for name in sorted(tensors):
        if (match := _TENSOR.fullmatch(name)) is not None:
            target = _Target(match[1], match[3] is not None)
            pairs.setdefault(target, {})[match[2] or match[3]] = name
        elif not _COPIED_EMBEDDING.fullmatch(name):
            yield f"'{name}' is no LoRA weight."
    if not pairs:
        yield "it has no LoRA weights."
    for target, names in pairs.items():
        if len(names) < 2:
            yield f"'{next(iter(names.values()))}' has no counterpart; A and B come in pairs."
        elif not _FUSED_EXPERTS.fullmatch(target.name):
            yield from _pair_misfits(target, names, tensors, base, config)


def _pair_misfits(
    target: _Target, names: Mapping[str, str], tensors: Mapping[str, Tensor], base: "_Base", config: _Config
) -> Iterator[str]:
    a, b = (tensors[names[kind]].shape for kind in "AB")
    if len(a) < 2 or len(b) < 2 or a[0] != b[1]:
        yield f"'{names['A']}' is {list(a)} and '{names['B']}' is {list(b)}; their ranks differ."
    elif a[0] not in config.ranks:
        yield f"'{names['A']}' is {list(a)}, of a rank that {CONFIG} doesn't name."
    elif not (there := base.find(target.name)):
        yield f"'{names['A']}' is for a module '{target.name}', which the model doesn't have."
    else:
        transposed = bool(config.fan_in_fan_out) or target.embeds
        wanted = [_needed(shape, a[0], transposed) for _, shape in there if shape is not None]
        if wanted and (a, b) not in wanted:
            at = 0 if a != wanted[0][0] else 1
            weight, shape = next((weight, shape) for weight, shape in there if shape is not None)
            yield (
                f"'{names['AB'[at]]}' is {list((a, b)[at])}, but the model's '{weight}' is {list(shape)}, which needs "
                f"{list(wanted[0][at])}: it was made for another base model."
            )


def _needed(shape: Shape, rank: int, transposed: bool) -> tuple[Shape, Shape]:
    """The shapes of A and B for a weight of `shape`, [out, in]."""
    out, *inside = reversed(shape) if transposed and len(shape) == 2 else shape
    return (rank, *inside), (out, rank, *(1 for _ in inside[1:]))


class _Base:
    """A model's weights, found by the names that an adapter has for them."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._exact: dict[str, tuple[str, Shape | None]] = {}
        self._anchored: dict[str, list[tuple[str, Shape | None]]] = {}
        for name, tensor in weights.items():
            if name.endswith((".weight", *PACKED)):
                module = name.rpartition(".")[0]
                plain = name.endswith(".weight") and tensor.dtype in PLAIN_DTYPES
                self._exact[module] = entry = (name, tensor.shape if plain else None)
                self._anchored.setdefault(_anchor(module), []).append(entry)

    def find(self, module: str) -> list[tuple[str, Shape | None]]:
        """The weights that may be `module`'s, with their shapes; None: quantized, it says nothing."""
        if module in self._exact:
            return [self._exact[module]]
        tied = "embed_tokens" if module.endswith("lm_head") else ""  # a tied head has no weight of its own
        return self._anchored.get(_anchor(module)) or self._anchored.get(tied) or []


def _anchor(module: str) -> str:
    """What is the same of a module's name in a checkpoint and in a program: from its numbered layer on."""
    parts = module.split(".")
    numbered = next((index for index, part in enumerate(parts) if part.isdigit()), len(parts))
    return ".".join(parts[max(numbered - 1, 0) :])


def inside(folder: str, wanted: str) -> Path:
    """The folder that a client's `wanted` names in `folder`, links followed, whether it is there or not.

    Raises:
        ApiError: 400; it is outside. That tells nothing of what is there.
    """
    root = Path(os.path.realpath(os.path.expanduser(folder)))
    found = Path() if "\0" in wanted else Path(os.path.realpath(root / wanted))
    if root not in found.parents:
        message = f"The path '{wanted[:200]}' is not inside the folder that adapters may be loaded from."
        raise ApiError(400, message, param="lora_path", code="path_not_allowed")
    return found

"""The headers of safetensors files: which tensors there are. No weight is read, and no torch is imported.

Source: the format's description in the safetensors README: eight bytes of little-endian length, then JSON.
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

MAX_HEADER_BYTES = 64 * 2**20  # a mixture of experts' adapter, with a tensor pair an expert, needs some
INDEX = "model.safetensors.index.json"  # of a sharded checkpoint
WHOLE = "model.safetensors"  # one that isn't

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor, as a header describes it."""

    dtype: str
    shape: Shape


class _Entry(BaseModel):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int] = Field(description="Bytes, from the end of the header.")


class _Index(BaseModel):
    weight_map: dict[str, str]  # a tensor's file


_ENTRIES = TypeAdapter(dict[str, _Entry])


def read_header(path: Path) -> dict[str, Tensor]:
    """The tensors in the file at `path`, by name.

    Raises:
        OSError: it can't be read.
        ValueError: it is no whole safetensors file; the message says why, without the path.
    """
    size = os.path.getsize(path)
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 0 < length <= min(size - 8, MAX_HEADER_BYTES):
            raise ValueError("its first eight bytes give no length of a header")
        header = file.read(length)
    try:
        document = from_json(header)
        if not isinstance(document, dict):
            raise ValueError("its header is no JSON object")
        document.pop("__metadata__", None)
        entries = _ENTRIES.validate_python(document)
    except ValidationError:
        raise ValueError("its header doesn't describe tensors") from None
    except ValueError as error:
        raise ValueError(f"its header is not JSON: {error}") from None
    if max((entry.data_offsets[1] for entry in entries.values()), default=0) > size - 8 - length:
        raise ValueError("it is cut short: its header describes more bytes than it has")
    return {name: Tensor(entry.dtype, entry.shape) for name, entry in entries.items()}


def read_checkpoint(folder: Path) -> dict[str, Tensor]:
    """The tensors of the checkpoint in `folder`, in one file or in shards.

    Raises:
        OSError, ValueError: it can't be read, or holds no safetensors.
    """
    tensors: dict[str, Tensor] = {}
    for name in _files(folder):
        tensors |= read_header(folder / name)
    if not tensors:
        raise ValueError("it holds no safetensors")
    return tensors


def _files(folder: Path) -> list[str]:
    if (folder / WHOLE).is_file():
        return [WHOLE]
    if (folder / INDEX).is_file():
        names = set(_Index.model_validate_json((folder / INDEX).read_bytes()).weight_map.values())
        if strange := sorted(name for name in names if os.path.basename(name) != name):
            raise ValueError(f"{INDEX} names a file outside its folder: {strange[0]}")
        return sorted(names)
    return sorted(path.name for path in folder.glob("*.safetensors"))

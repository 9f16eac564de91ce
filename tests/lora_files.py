"""LoRA adapters and checkpoints for tests, written byte by byte."""

import json
import math
import random
import struct
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Shapes = Mapping[str, tuple[int, ...]]


def write_safetensors(path: Path, shapes: Shapes, scale: float = 0.0, dtype: str = "F32") -> None:
    """A file with tensors of these shapes, of four bytes a number; normally distributed by `scale`."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    numbers, generator = array("f"), random.Random(0)
    for name, shape in shapes.items():
        start, count = len(numbers), math.prod(shape)
        numbers.extend(generator.gauss(0, scale) if scale else 0.0 for _ in range(count))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start * 4, (start + count) * 4]}
    document = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(document)) + document + numbers.tobytes())


def adapter_shapes(layers: int, hidden: int, heads: Mapping[str, int], rank: int) -> dict[str, tuple[int, ...]]:
    """An adapter's tensors for the attention projections in `heads`, each with its width."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(layers):
        for name, width in heads.items():
            module = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            shapes |= {f"{module}.lora_A.weight": (rank, hidden), f"{module}.lora_B.weight": (width, rank)}
    return shapes


def write_adapter(folder: Path, shapes: Shapes, *, scale: float = 0.0, **config: Any) -> Path:
    """An adapter in PEFT's form; `config` goes into its adapter_config.json."""
    folder.mkdir(parents=True)
    rank = next((shape[0] for name, shape in shapes.items() if "lora_A" in name), 8)
    given = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps({**given, **config}))
    write_safetensors(folder / "adapter_model.safetensors", shapes, scale)
    return folder

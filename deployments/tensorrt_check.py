"""Whether a compiled TensorRT-LLM engine is one that this machine and this pool can load, told before it is tried."""

import json
from pathlib import Path
from typing import Any

from deployments.tensorrt_build import BuildError, Machine, parallelism

MARKER = "enginehouse-build.json"  # ours: an engine's own config.json has no GPU architecture


def check(folder: Path, machine: Machine, tp_size: int, pp_size: int, rebuild: str) -> None:
    """Return if the engine in `folder` runs on this machine, and on as many GPUs as are wanted.

    Raises:
        BuildError: it doesn't: what differs, and `rebuild`, which tells how to make it anew.
    """
    if found := _differences(folder, machine, (tp_size, pp_size)):
        raise BuildError(f"The engine in {folder} can't run here: {'; '.join(found)}. To rebuild it, {rebuild}")


def _differences(folder: Path, machine: Machine, wanted: tuple[int, int]) -> list[str]:
    try:
        config = _document(folder / "config.json")
        # One that was built by hand has no marker.
        marker = _document(folder / MARKER) if (folder / MARKER).exists() else {}
        sizes = parallelism(folder / "config.json")
    except (OSError, ValueError) as error:
        return [f"it isn't whole: {error}"]
    found = []
    if (have := config.get("version")) != machine.tensorrt_llm:
        found.append(f"it was built by TensorRT-LLM {have}, and {machine.tensorrt_llm} is here")
    if sizes != wanted:
        found.append(
            f"it was built for tensor_parallel_size {sizes[0]} and pipeline_parallel_size {sizes[1]}, and the pool "
            f"wants {wanted[0]} and {wanted[1]}"
        )
    built_on = marker.get("machine") or {}
    for name, words in (("gpu_architecture", "for the GPU architecture"), ("tensorrt", "with TensorRT")):
        if (had := built_on.get(name, here := getattr(machine, name))) != here:
            found.append(f"it was built {words} {had}, and {here} is here")
    ranks = [f"rank{rank}.engine" for rank in range(sizes[0] * sizes[1])]
    missing = [name for name in ranks if not (folder / name).is_file()]
    return found + ([f"it lacks {', '.join(missing)}"] if missing else [])


def _document(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_text("utf-8"))
    if not isinstance(document, dict):
        raise BuildError(f"{path} holds no JSON object")
    return document

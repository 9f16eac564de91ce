"""Which quantized checkpoints an engine can run, and the refusal of the others before anything is loaded."""

from collections.abc import Mapping
from pathlib import Path

from deployments import model_facts
from deployments.environments import Variant, machine_variant


class QuantizationError(ValueError):
    """The engine can't run that checkpoint here. The message says what it can."""


# By engine and kind of machine; an engine that isn't here judges for itself, when it reads its arguments.
# vLLM's are those of its x86 kernels (its documentation, "Supported hardware"); SGLang's kernels need a GPU; for
# Transformers, none of the packages that read quantized weights is installed.
SUPPORTED: Mapping[tuple[str, Variant], frozenset[str]] = {
    ("vllm", "cpu"): frozenset({"awq", "compressed-tensors", "fp8", "gptq"}),
    ("sglang", "cpu"): frozenset(),
    ("transformers", "cpu"): frozenset(),
    ("transformers", "cuda"): frozenset(),
}


def check(engine: str, folder: Path, asked: object = None, variant: Variant | None = None) -> None:
    """Return if `engine` runs the checkpoint in `folder` on this kind of machine. `asked` is the engine argument
    `quantization`, which quantizes a plain checkpoint or must agree with what a quantized one says.

    Raises:
        QuantizationError: it doesn't, or the two disagree.
        OSError, ValueError: the folder has no readable config.json.
    """
    found = model_facts.quantization(folder)
    if isinstance(asked, str) and found and not _same(asked, found):
        raise QuantizationError(f"The checkpoint is quantized by {found}, and engine_args say quantization: {asked}.")
    method = asked.lower() if isinstance(asked, str) else found
    supported = SUPPORTED.get((engine, variant or machine_variant()))
    if method is None or supported is None or any(_same(method, name) for name in supported):
        return
    what = f"only {', '.join(sorted(supported))}" if supported else "no quantized checkpoints"
    where = "a CPU" if (variant or machine_variant()) == "cpu" else "a GPU"
    raise QuantizationError(
        f"The {engine} engine runs {what} on {where}, and this checkpoint needs {method}. "
        "Take another checkpoint of the model, or another engine."
    )


def _same(one: str, other: str) -> bool:
    """Whether two names mean one method: `awq_marlin` is a way to run `awq`."""
    a, b = (name.lower().replace("_", "-").removesuffix("-marlin").removeprefix("auto-") for name in (one, other))
    return a == b

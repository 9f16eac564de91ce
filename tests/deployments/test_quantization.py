import json
from pathlib import Path

import pytest

from deployments import registry
from deployments.engine import PoolModel
from deployments.environments import Variant
from deployments.quantization import SUPPORTED, QuantizationError, check


def checkpoint(folder: Path, method: str | None) -> Path:
    config = {"quantization_config": {"quant_method": method}} if method else {}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("engine", "variant", "method", "asked"),
    [
        ("vllm", "cpu", None, None),
        ("vllm", "cpu", "awq", None),
        ("vllm", "cpu", "gptq", "gptq_marlin"),
        ("vllm", "cpu", None, "fp8"),
        ("vllm", "cpu", "compressed-tensors", "compressed_tensors"),
        ("vllm", "cuda", "bitsandbytes", None),  # vLLM judges
        ("sglang", "cuda", "anything", None),
        ("sglang", "cpu", None, None),
        ("transformers", "cpu", None, None),
    ],
)
def test_what_runs(tmp_path: Path, engine: str, variant: Variant, method: str | None, asked: str | None) -> None:
    check(engine, checkpoint(tmp_path, method), asked, variant)


@pytest.mark.parametrize(
    ("engine", "variant", "method", "asked", "message"),
    [
        ("vllm", "cpu", "bitsandbytes", None, "runs only awq, compressed-tensors, fp8, gptq on a CPU, and this"),
        ("vllm", "cpu", None, "bitsandbytes", "needs bitsandbytes"),
        ("sglang", "cpu", "awq", None, "The sglang engine runs no quantized checkpoints on a CPU"),
        ("transformers", "cuda", "awq", None, "The transformers engine runs no quantized checkpoints on a GPU"),
        ("vllm", "cpu", "awq", "gptq", "is quantized by awq, and engine_args say quantization: gptq"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, engine: str, variant: Variant, method: str | None, asked: str | None, message: str
) -> None:
    with pytest.raises(QuantizationError, match=message):
        check(engine, checkpoint(tmp_path, method), asked, variant)


def test_the_table_names_engines_that_there_are() -> None:
    assert {engine for engine, _ in SUPPORTED} <= registry.ENGINES.keys()


@pytest.mark.parametrize("engine", ["transformers", "sglang", "vllm"])
async def test_each_engine_refuses_before_it_loads_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.setattr("deployments.quantization.machine_variant", lambda: "cpu")
    checkpoint(tmp_path, "bitsandbytes")
    args = registry.args_type(engine).model_validate({})
    with pytest.raises(QuantizationError):
        await registry.create(engine, PoolModel(str(tmp_path), "m"), args).start()

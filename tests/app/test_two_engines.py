"""The config of two engines behind one door."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from app import cli
from app.check import check_file

CONFIG = Path(__file__).parents[2] / "cluster" / "two-engines.yaml"
HOT = ("llama-3.3-70b", "qwen2.5-72b", "mistral-large")


def explained(config: Path, model: str, **fields: Any) -> dict[str, Any]:
    request = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}], **fields})
    result = CliRunner().invoke(cli.main, ["route", "explain", "-", "--config", str(config), "--json"], input=request)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_one_door_has_23_names() -> None:
    checked = check_file(CONFIG, {})
    assert checked.problems == []
    assert checked.ingress is not None and len(checked.ingress.models) == 23
    engines = {name: pool.engine for name, pool in checked.pools.items()}
    assert {name for name, engine in engines.items() if engine == "tensorrt_llm"} == set(HOT)
    assert sum(engine == "vllm" for engine in engines.values()) == 20


@pytest.mark.parametrize("model", HOT)
def test_streaming_chat_on_a_hot_model_goes_to_tensorrt_llm(model: str) -> None:
    found = explained(CONFIG, model, stream=True)
    assert (found["request_type"], found["pool"], found["engine"]) == ("chat", model, "tensorrt_llm")
    assert found["passed_over"] == []


@pytest.mark.parametrize(("model", "old", "new"), [(HOT[0], "tensorrt_llm", "vllm"), ("phi-4", "vllm", "tensorrt_llm")])
def test_a_model_s_engine_is_one_line(tmp_path: Path, model: str, old: str, new: str) -> None:
    lines = CONFIG.read_text().splitlines()
    at = lines.index(f"      engine: {old}", lines.index(f"  - name: {model}"))
    lines[at] = f"      engine: {new}"
    swapped = tmp_path / "swapped.yaml"
    swapped.write_text("\n".join(lines))
    assert check_file(swapped, {}).problems == []
    assert explained(swapped, model, stream=True)["engine"] == new

import json
from pathlib import Path
from typing import Any

import pytest

from deployments import bundled, model_facts, models
from deployments.engine import PoolModel
from deployments.model_facts import ModelFacts


def checkpoint(folder: Path, **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_chat_model(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, architectures=["LlamaForCausalLM"], max_position_embeddings=8192)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert model_facts.read(folder) == ModelFacts(context_length=8192)


def test_a_template_in_the_tokenizer_config(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, architectures=["LlamaForCausalLM"])
    assert not model_facts.read(folder).chats
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    assert model_facts.read(folder).chats


def test_a_model_that_sees(tmp_path: Path) -> None:
    folder = checkpoint(
        tmp_path,
        architectures=["LlavaForConditionalGeneration"],
        vision_config={},
        text_config={"max_position_embeddings": 4096},
    )
    facts = model_facts.read(folder)
    assert facts.sees and facts.generates and facts.context_length == 4096


def test_a_model_that_embeds(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, architectures=["BertModel"], max_position_embeddings=512)
    assert model_facts.read(folder) == ModelFacts(context_length=512, generates=False, chats=False)


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_a_broken_one_is_left_to_the_engine(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    assert model_facts.of(PoolModel(str(tmp_path), "m")) == ModelFacts()


def test_one_that_is_not_here() -> None:
    assert model_facts.of(PoolModel("nobody/nothing", "m")) == ModelFacts()
    assert model_facts.of(PoolModel("/nowhere", "m")) == ModelFacts()
    assert models.local_folder("no such name!") is None


def test_a_bundled_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEHOUSE_CACHE", str(tmp_path))
    assert models.local_folder(bundled.NAME) is None
    folder = bundled.folder()
    folder.parent.mkdir(parents=True)
    checkpoint(folder)
    assert models.local_folder(bundled.NAME) == folder


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({}, None),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"quantization_config": {"quant_algo": "FP8"}}, "fp8"),
        ({"compression_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors"),
        ({"quantization_config": None}, None),
    ],
)
def test_quantization(tmp_path: Path, config: dict[str, Any], method: str | None) -> None:
    assert model_facts.quantization(checkpoint(tmp_path, **config)) == method


@pytest.mark.parametrize(
    ("flags", "how"),
    [
        (
            {"word_embedding_dimension": 384, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True},
            "mean_tokens",
        ),
        ({"pooling_mode_lasttoken": True}, "lasttoken"),
        ({}, None),
    ],
)
def test_pooling(tmp_path: Path, flags: dict[str, Any], how: str | None) -> None:
    assert model_facts.pooling(tmp_path) is None
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    assert model_facts.pooling(tmp_path) == how

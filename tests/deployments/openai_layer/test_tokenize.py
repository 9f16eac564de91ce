import json
from typing import Any

import pytest

from deployments.engine import Endpoint, EngineRequest
from deployments.errors import ApiError
from deployments.openai_layer.layer import OpenAILayer
from deployments.openai_layer.text import Tokenizer
from tests.deployments.openai_layer.fake_engine import FakeEngine


async def ask(tokenizer: Tokenizer, endpoint: Endpoint, **fields: Any) -> dict[str, Any]:
    layer = OpenAILayer(FakeEngine(tokenizer), "m")
    try:
        body = json.dumps({"model": "m", **fields}).encode()
        answer = await layer.handle(EngineRequest(endpoint, body, "id"))
    finally:
        layer.close()
    assert isinstance(answer.body, bytes) and answer.status == 200
    document: dict[str, Any] = json.loads(answer.body)
    return document


@pytest.mark.parametrize("text", ["hello world", "🎉 日本語 naïve", ""])
async def test_there_and_back(tokenizer: Tokenizer, text: str) -> None:
    found = await ask(tokenizer, "tokenize", prompt=text)
    assert found == {"count": len(found["tokens"]), "max_model_len": 256, "tokens": tokenizer.encode(text)}
    assert await ask(tokenizer, "detokenize", tokens=found["tokens"]) == {"prompt": text}


async def test_a_conversation_is_rendered_as_for_an_answer(tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "hello"}]
    whole = await ask(tokenizer, "tokenize", messages=messages)
    assert tokenizer.decode(whole["tokens"]) == "<|start|>user\nhello<|end|><|start|>assistant\n"
    bare = await ask(tokenizer, "tokenize", messages=messages, add_generation_prompt=False)
    assert tokenizer.decode(bare["tokens"]) == "<|start|>user\nhello<|end|>"


async def test_special_tokens_can_be_left_out(tokenizer_with_start: Tokenizer) -> None:
    whole = await ask(tokenizer_with_start, "tokenize", prompt="hello")
    bare = await ask(tokenizer_with_start, "tokenize", prompt="hello", add_special_tokens=False)
    assert whole["tokens"] == [1, *bare["tokens"]]


@pytest.mark.parametrize(
    ("endpoint", "fields", "param"),
    [
        ("tokenize", {}, "prompt"),
        ("tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("tokenize", {"prompt": 7}, "prompt"),
        ("tokenize", {"prompt": "a", "promt": "a"}, "promt"),
        ("tokenize", {"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ("tokenize", {"prompt": "a" * 100_000}, "prompt"),
        ("detokenize", {}, "tokens"),
        ("detokenize", {"tokens": [1, -1]}, "tokens"),
        ("detokenize", {"tokens": [100_000]}, "tokens"),
        ("detokenize", {"tokens": ["a"]}, "tokens[0]"),
    ],
)
async def test_bad_requests(tokenizer: Tokenizer, endpoint: Endpoint, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        await ask(tokenizer, endpoint, **fields)
    assert (caught.value.status, caught.value.param) == (400, param)

"""OpenAI's API, as clients use it, on every real engine."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from tests.live.server import Server

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
UNICODE = [{"role": "user", "content": "Repeat exactly: 🎉👩‍👩‍👧 日本語 naïve café"}]


def chat(model: str, messages: Any = FRANCE, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": messages, "temperature": 0, "max_tokens": 32, **fields}


async def events(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The documents of a stream, which must end with [DONE]."""
    async with client.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def whole(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def test_answers_and_says_who(client: httpx.AsyncClient, model: str, pool: str) -> None:
    answer = await client.post("/v1/chat/completions", json=chat(model))
    document = answer.json()
    assert document["choices"][0]["message"]["content"] == "The capital of France is Paris."
    assert document["choices"][0]["finish_reason"] == "stop"
    assert document["model"] == model
    assert document["usage"] == {**document["usage"], "prompt_tokens": 37, "completion_tokens": 8, "total_tokens": 45}
    assert answer.headers["x-enginehouse-pool"] == pool
    assert answer.headers["x-enginehouse-engine"] == pool
    assert len(answer.headers.get_list("x-request-id")) == 1


@pytest.mark.parametrize("messages", [FRANCE, UNICODE], ids=["ascii", "unicode"])
async def test_stream_equals_whole(client: httpx.AsyncClient, model: str, messages: Any) -> None:
    body = chat(model, messages, max_tokens=48)
    chunks = await events(client, "/v1/chat/completions", body)
    document = await whole(client, "/v1/chat/completions", body)
    assert text_of(chunks) == document["choices"][0]["message"]["content"]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"][0]["finish_reason"] == document["choices"][0]["finish_reason"]
    assert all("usage" not in chunk or chunk["usage"] is None for chunk in chunks)
    assert len({chunk["id"] for chunk in chunks}) == 1


async def test_completions_stream_equals_whole(client: httpx.AsyncClient, model: str) -> None:
    body = {"model": model, "prompt": "Once upon a time", "temperature": 0, "max_tokens": 24}
    chunks = await events(client, "/v1/completions", body)
    document = await whole(client, "/v1/completions", body)
    assert (
        "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"]) == document["choices"][0]["text"]
    )
    assert document["usage"]["completion_tokens"] == 24


async def test_usage_chunk_only_when_asked(client: httpx.AsyncClient, model: str) -> None:
    body = chat(model, stream_options={"include_usage": True})
    chunks = await events(client, "/v1/chat/completions", body)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 8


async def test_stop_string(client: httpx.AsyncClient, model: str) -> None:
    body = chat(model, stop=[" France"])
    document = await whole(client, "/v1/chat/completions", body)
    assert document["choices"][0]["message"]["content"] == "The capital of"
    assert document["choices"][0]["finish_reason"] == "stop"
    assert text_of(await events(client, "/v1/chat/completions", body)) == "The capital of"


async def test_seed_and_choices(client: httpx.AsyncClient, model: str) -> None:
    body = chat(model, [{"role": "user", "content": "Tell me a story."}], temperature=1.0, seed=7, n=3, max_tokens=12)
    first, second = [await whole(client, "/v1/chat/completions", body) for _ in range(2)]
    texts = [choice["message"]["content"] for choice in first["choices"]]
    assert texts == [choice["message"]["content"] for choice in second["choices"]]
    assert [choice["index"] for choice in first["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    chunks = await events(client, "/v1/chat/completions", body)
    assert [text_of(chunks, index) for index in range(3)] == texts


async def test_logprobs(client: httpx.AsyncClient, model: str) -> None:
    document = await whole(client, "/v1/chat/completions", chat(model, logprobs=True, top_logprobs=2, max_tokens=4))
    tokens = document["choices"][0]["logprobs"]["content"]
    assert [token["token"] for token in tokens] == ["The", " capital", " of", " France"]
    for token in tokens:
        assert token["logprob"] <= 0
        assert token["logprob"] == pytest.approx(token["top_logprobs"][0]["logprob"], abs=1e-3)
        assert bytes(token["bytes"]).decode() == token["token"]


async def test_limits_are_honoured(client: httpx.AsyncClient, model: str) -> None:
    body = chat(model, [{"role": "user", "content": "Count to one hundred."}])
    for field in ("max_tokens", "max_completion_tokens"):
        del body["max_tokens"]
        body[field] = 5
        document = await whole(client, "/v1/chat/completions", body)
        assert document["choices"][0]["finish_reason"] == "length"
        assert document["usage"]["completion_tokens"] == 5
        body = chat(model, body["messages"])


async def test_many_streams_at_once_each_get_their_own_answer(client: httpx.AsyncClient, model: str) -> None:
    def body(number: int) -> dict[str, Any]:
        question = f"Write the word item-{number} and then a sentence about the number {number}."
        return chat(model, [{"role": "user", "content": question}], max_tokens=16)

    alone = [text_of(await events(client, "/v1/chat/completions", body(number))) for number in range(0, 32, 4)]
    together = await asyncio.gather(*(events(client, "/v1/chat/completions", body(number)) for number in range(32)))
    texts = [text_of(chunks) for chunks in together]
    assert texts[::4] == alone
    assert len(set(texts)) > 16
    assert len({chunks[0]["id"] for chunks in together}) == 32


def test_official_client(server: Server, model: str) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        assert model in [item.id for item in client.models.list()]
        assert client.models.retrieve(model).id == model
        answer = client.chat.completions.create(**chat(model))
        assert answer.choices[0].message.content == "The capital of France is Paris."
        stream = client.chat.completions.create(**chat(model), stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "The capital of France is Paris."
        with pytest.raises(openai.NotFoundError, match="There are: "):
            client.chat.completions.create(**chat("nothing"))
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(**chat(model, max_tokens=10**6))
        assert refused.value.code == "context_length_exceeded"


async def test_official_async_client(server: Server, model: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        answer = await client.chat.completions.create(**chat(model))
        assert answer.choices[0].message.content == "The capital of France is Paris."
        stream = await client.chat.completions.create(**chat(model), stream=True)
        texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(texts) == "The capital of France is Paris."
        completion = await client.completions.create(model=model, prompt="The capital of France is", max_tokens=4)
        assert completion.choices[0].finish_reason == "length"


BAD: dict[str, tuple[Any, str | None]] = {
    "empty body": (b"", None),
    "broken JSON": (b'{"model": ', None),
    "not an object": (b"[1]", None),
    "invalid UTF-8": (b'{"model": "\xff"}', None),
    "no model": ({"model": None}, "model"),
    "model of a wrong type": ({"model": 7}, "model"),
    "stream of a wrong type": ({"stream": "yes"}, "stream"),
    "no messages": ({"messages": []}, "messages"),
    "messages of a wrong type": ({"messages": "hello"}, "messages"),
    "content of a wrong type": ({"messages": [{"role": "user", "content": 4}]}, "messages[0].content"),
    "temperature of a wrong type": ({"temperature": "hot"}, "temperature"),
    "temperature out of range": ({"temperature": -1}, "temperature"),
    "top_p out of range": ({"top_p": 2}, "top_p"),
    "n out of range": ({"n": 0}, "n"),
    "max_tokens out of range": ({"max_tokens": -1}, "max_tokens"),
    "unknown field": ({"temprature": 1}, "temprature"),
    "stream_options without stream": ({"stream_options": {"include_usage": True}}, "stream_options"),
    "too many logprobs": ({"logprobs": True, "top_logprobs": 1000}, None),
    "stop of a wrong type": ({"stop": 5}, "stop"),
    "seed out of range": ({"seed": 2**70}, "seed"),
    "a prompt that doesn't fit": ({"messages": [{"role": "user", "content": "word " * 9000}]}, "messages"),
    "an image": ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, None),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_bad_input_is_a_400(client: httpx.AsyncClient, model: str, name: str, stream: bool) -> None:
    change, param = BAD[name]
    body = change if isinstance(change, bytes) else json.dumps({**chat(model), "stream": stream} | change).encode()
    if name == "stream_options without stream" and stream:
        body = json.dumps({**chat(model), "stream_options": {"include_usage": True}}).encode()
    answer = await client.post("/v1/chat/completions", content=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) > 10
    if param is not None:
        assert error["param"] == param


async def test_a_prompt_that_does_not_fit_is_told_with_both_numbers(client: httpx.AsyncClient, model: str) -> None:
    answer = await client.post("/v1/chat/completions", json=chat(model, max_tokens=100_000))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert "100000" in error["message"]
    assert any(limit in error["message"] for limit in ("4096", "8192"))


async def test_engine_is_unharmed_by_bad_input(client: httpx.AsyncClient, model: str) -> None:
    good = [client.post("/v1/chat/completions", json=chat(model)) for _ in range(4)]
    changes: list[dict[str, Any]] = [{"n": 0}, {"messages": []}]
    bad = [client.post("/v1/chat/completions", json=chat(model, **change)) for change in changes]
    answers = await asyncio.gather(*good, *bad)
    assert [answer.status_code for answer in answers] == [200] * 4 + [400] * 2
    assert {answer.json()["choices"][0]["message"]["content"] for answer in answers[:4]} == {
        "The capital of France is Paris."
    }


async def test_unknown_model_and_endpoints(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/chat/completions", json=chat("gpt-17"))
    assert answer.status_code == 404
    assert "smollm2-transformers" in answer.json()["error"]["message"]
    assert (await client.get("/v1/nothing")).json()["error"]["type"] == "invalid_request_error"
    assert (await client.get("/docs")).status_code == 200
    assert (await client.get("/health")).json() == {"status": "ok"}
    assert (await client.get("/ready")).json()["ready"] is True

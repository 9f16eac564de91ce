"""Completions by TGI's native routes: over a stand-in for its servers, and over an answer that a real one gave."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from deployments.errors import ApiError
from deployments.tgi import TgiEngine
from tests.deployments.test_tgi import (
    Document,
    asking,
    chunks,
    events_of,
    pool,
    quick,
    recorded,
    served,
    text_of,
    whole,
)
from tests.fakes.tgi import PIECE, Server
from tests.waiting import free_port, until

STREAMS = pytest.mark.parametrize("stream", [False, True])


async def complete(engine: TgiEngine, **fields: Any) -> Document:
    return await whole(engine, endpoint="completions", **{"logprobs": 1, **fields})


async def pieces(engine: TgiEngine, **fields: Any) -> list[Document]:
    return await chunks(engine, endpoint="completions", **{"logprobs": 1, **fields})


async def answer(engine: TgiEngine, stream: bool, **fields: Any) -> Any:
    """Whole, or all of a stream."""
    if not stream:
        return await complete(engine, **fields)
    asked = asking(endpoint="completions", stream=True, **{"logprobs": 1, **fields})
    return await events_of(await engine.handle(asked))


async def test_an_answer_of_a_real_server() -> None:
    told = recorded("test_flash_llama/test_flash_llama_simple.json")
    async with pool(quick(replayed=[told])) as engine:
        document = await complete(engine, max_tokens=10)
    [choice] = document["choices"]
    assert (choice["text"], choice["finish_reason"]) == (told["generated_text"], told["details"]["finish_reason"])
    assert document["usage"]["completion_tokens"] == told["details"]["generated_tokens"]
    assert choice["logprobs"]["tokens"] == [token["text"] for token in told["details"]["tokens"]]
    assert choice["logprobs"]["token_logprobs"] == [token["logprob"] for token in told["details"]["tokens"]]
    assert choice["logprobs"]["text_offset"][1] == len(choice["logprobs"]["tokens"][0])


async def test_a_completion_and_its_stream_agree() -> None:
    async with pool(quick(answer_tokens=6)) as engine:
        for most in (4, 100):
            document = await complete(engine, logprobs=2, max_tokens=most)
            found = await pieces(engine, logprobs=2, max_tokens=most, stream_options={"include_usage": True})
            [choice] = document["choices"]
            assert text_of(found) == choice["text"]
            assert found[-1]["usage"] == document["usage"]
            assert found[-2]["choices"][0]["finish_reason"] == choice["finish_reason"]
            streamed = [chunk["choices"][0]["logprobs"] for chunk in found[:-1]]
            for name, values in choice["logprobs"].items():
                assert [value for logprobs in streamed for value in logprobs[name]] == values
            assert all(len(top) == 2 for top in choice["logprobs"]["top_logprobs"])
        # the end of a sequence is a token that says nothing
        assert (choice["finish_reason"], document["usage"]["completion_tokens"]) == ("stop", 7)
        assert choice["text"].endswith(choice["logprobs"]["tokens"][-2]) and choice["logprobs"]["tokens"][-1] == "</s>"


@STREAMS
async def test_prompts_are_echoed_and_counted(stream: bool) -> None:
    server = quick()
    prompts = ["Tell me a story", "Hello"]
    async with pool(server) as engine:
        fields = {"prompt": prompts, "echo": True, "logprobs": None, "max_tokens": 3}
        if stream:
            found = await pieces(engine, **fields, stream_options={"include_usage": True})
            texts = [
                "".join(one["text"] for chunk in found for one in chunk["choices"] if one["index"] == index)
                for index in (0, 1)
            ]
            usage = found[-1]["usage"]
        else:
            document = await complete(engine, **fields)
            texts, usage = [choice["text"] for choice in document["choices"]], document["usage"]
    assert [text.startswith(prompt) for text, prompt in zip(texts, prompts, strict=True)] == [True, True]
    tokens = sum(len(PIECE.findall(prompt)) for prompt in prompts)
    assert usage == {"prompt_tokens": tokens, "completion_tokens": 6, "total_tokens": tokens + 6}
    assert [body["inputs"] for body in server.received] == prompts


@STREAMS
async def test_nothing_of_a_stop_string_is_shown(stream: bool) -> None:
    async with pool(quick()) as engine:
        text = (await complete(engine, max_tokens=20))["choices"][0]["text"]
        stop = text[10:14]
        expected = text[: text.index(stop)]
        if stream:
            found = await pieces(engine, stop=stop, max_tokens=20)
            assert (text_of(found), found[-1]["choices"][0]["finish_reason"]) == (expected, "stop")
        else:
            [choice] = (await complete(engine, stop=stop, max_tokens=20))["choices"]
            assert (choice["text"], choice["finish_reason"]) == (expected, "stop")


async def test_what_reaches_the_server() -> None:
    server = quick(adapters=frozenset({"poems"}))
    async with pool(server, adapter_id="poems") as engine:
        await complete(engine, logprobs=0)
        await complete(engine, temperature=0.5, top_p=0.9, seed=0, stop=["zzz"], frequency_penalty=0.5, logprobs=3)
        await complete(engine, temperature=None, top_p=1, seed=7)
        await whole(engine)
    greedy, sampled, plain, chat = server.received
    always = {"max_new_tokens": 8, "details": True, "return_full_text": False, "adapter_id": "poems"}
    assert greedy["parameters"] == {**always, "do_sample": False}
    assert sampled["parameters"] == {
        **always,
        "do_sample": True,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 2**63,
        "stop": ["zzz"],
        "frequency_penalty": 0.5,
        "top_n_tokens": 3,
    }
    assert plain["parameters"] == {**always, "do_sample": True, "seed": 7, "top_n_tokens": 1}
    assert chat["model"] == "poems"


async def test_an_adapter_that_the_servers_have_not() -> None:
    async with pool(quick(), adapter_id="poems") as engine:
        for endpoint in ("completions", "chat/completions"):
            with pytest.raises(ApiError, match="adapter_id `poems` not found") as caught:
                await whole(engine, endpoint=endpoint)
            assert (caught.value.status, caught.value.param) == (400, "model")


@pytest.mark.parametrize("key", [None, "key"])
async def test_no_server_sees_the_hub_s_token_of_this_machine(key: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("TGI_KEY", "key")
    server = quick(api_key=key)
    async with pool(server, **({"api_key_env": "TGI_KEY"} if key else {})) as engine:
        await complete(engine)
    assert set(server.authorizations) == {None if key is None else "Bearer key"}


@STREAMS
async def test_what_the_server_refuses(stream: bool) -> None:
    async with pool(quick()) as engine:
        with pytest.raises(ApiError) as caught:
            await answer(engine, stream, logprobs=9)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, "logprobs", "invalid_value")


async def test_a_prompt_that_is_too_long_is_never_generated_from() -> None:
    server = quick(max_total_tokens=16)
    async with pool(server) as engine:
        with pytest.raises(ApiError, match="16 tokens, but 17 were requested: 9 in 'prompt' and 8") as caught:
            await complete(engine, prompt="a b c d e f g h i")
    assert (caught.value.status, caught.value.code, server.received) == (400, "context_length_exceeded", [])


@STREAMS
async def test_a_busy_server_passes_a_request_to_another(stream: bool) -> None:
    busy, free = quick(max_concurrent_requests=0), quick()
    async with served(busy) as url, pool(free) as engine:
        urls = (url, *engine._args.urls)
        both = TgiEngine(engine._model, engine._args.model_copy(update={"urls": urls, "unhealthy_after": 100}))
        await both.start()
        try:
            for server in both._upstream.servers:
                server.state = "up"
            for _ in range(2):  # two prompts: one begins at either
                assert await answer(both, stream, prompt=["a", "b"])
        finally:
            await both.stop()
    assert busy.received and len(free.received) == 4


@STREAMS
async def test_servers_that_are_all_busy_are_a_429(stream: bool) -> None:
    async with pool(quick(max_concurrent_requests=1), unhealthy_after=100) as engine:
        response = await engine.handle(asking(endpoint="completions", logprobs=1, stream=True, max_tokens=600))
        async with aclosing(cast("AsyncGenerator[bytes]", response.body)) as body:
            await anext(body)
            with pytest.raises(ApiError) as caught:
                await answer(engine, stream)
    assert (caught.value.status, caught.value.code) == (429, "upstream_overloaded")


async def test_a_server_that_is_gone_passes_a_request_to_another() -> None:
    async with pool(quick()) as engine:
        gone = f"http://127.0.0.1:{free_port()}"
        args = engine._args.model_copy(update={"urls": (gone, *engine._args.urls), "health_interval_s": 60})
        both = TgiEngine(engine._model, args)
        await both.start()
        try:
            both._upstream.servers[0].state = "up"
            for _ in range(2):
                assert (await complete(both))["usage"]["completion_tokens"] == 8
            both._upstream.servers[0].state = "up"
            both._upstream.servers[1].state = "down"
            with pytest.raises(ApiError) as caught:
                await complete(both)
            assert (caught.value.status, caught.value.code) == (503, "upstream_down")
            assert [server.in_flight for server in both._upstream.servers] == [0, 0]
        finally:
            await both.stop()


async def test_a_failure_after_the_first_token_is_an_event_without_an_end() -> None:
    async with pool(quick(fails_after=3)) as engine:
        *_, last = await answer(engine, True)
    assert "error" in json.loads(last)


async def test_a_failure_before_the_first_token_has_a_status() -> None:
    async with pool(quick(fails_after=0)) as engine:
        with pytest.raises(ApiError, match="failed during generation") as caught:
            await answer(engine, True)
    assert caught.value.status == 500


async def test_leaving_stops_the_server() -> None:
    server = quick()
    async with pool(server) as engine:
        response = await engine.handle(asking(endpoint="completions", logprobs=1, stream=True, max_tokens=600))
        async with aclosing(cast("AsyncGenerator[bytes]", response.body)) as body:
            await anext(body)
            assert server.running == 1
        await until(lambda: not server.running, "the server has stopped the first")
        task = asyncio.create_task(complete(engine, max_tokens=600))
        await until(lambda: server.running, "the server works")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: not server.running)
        assert [each.in_flight for each in engine._upstream.servers] == [0]


class Answering(Server):
    """A server whose native routes answer with whatever is told."""

    told: Response

    def app(self) -> Starlette:
        routes = [Route(path, self.tell, methods=["POST"]) for path in ("/generate", "/generate_stream")]
        return Starlette(routes=[*routes, *super().app().routes])

    async def tell(self, request: Request) -> Response:
        await request.body()
        return self.told


def sse(text: str) -> Response:
    return Response(text, media_type="text/event-stream")


@STREAMS
@pytest.mark.parametrize(
    ("told", "status"),
    [
        (lambda: Response(status_code=401), 502),
        (lambda: PlainTextResponse("Failed to deserialize the JSON body", 422), 502),
        (lambda: PlainTextResponse("bad gateway", 502), 502),
        (lambda: Response(status_code=307, headers={"location": "http://127.0.0.1:9/generate"}), 502),
        (lambda: sse("data: {\n\n"), 502),
        (lambda: sse("data: []\n\n"), 502),
        (lambda: sse('data: {"index": 1}\n\n'), 502),
        (lambda: sse(""), 502),
        (lambda: PlainTextResponse("{}"), 502),
        (lambda: PlainTextResponse('{"generated_text": "x", "details": null}'), 502),
    ],
)
async def test_answers_that_are_none(told: Any, status: int, stream: bool) -> None:
    server = Answering(interval_s=0)
    server.told = told()
    async with pool(server) as engine:
        with pytest.raises(ApiError) as caught:
            await answer(engine, stream)
    assert caught.value.status == status

"""The TGI engine over a stand-in for its servers, and over answers that real ones gave."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import uvicorn
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from deployments.engine import EngineRequest, EngineResponse, PoolModel
from deployments.errors import ApiError
from deployments.tgi import TgiArgs, TgiEngine
from tests.fakes.tgi import Server
from tests.waiting import free_port, until

RESPONSES = Path(__file__).parents[1] / "data" / "tgi" / "responses"
RECORDED = sorted(path.relative_to(RESPONSES).as_posix() for path in RESPONSES.rglob("*.json"))
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
Document = dict[str, Any]


@asynccontextmanager
async def served(server: Any, port: int | None = None) -> AsyncGenerator[str]:
    port = port or free_port()
    config = uvicorn.Config(server.app(), host="127.0.0.1", port=port, log_level="error", timeout_graceful_shutdown=1)
    running = uvicorn.Server(config)
    running.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(running.serve())
    await until(lambda: running.started)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        running.should_exit = True
        await task


@asynccontextmanager
async def pool(server: Server, **args: Any) -> AsyncGenerator[TgiEngine]:
    async with served(server) as url:
        fast = {"health_interval_s": 0.05, "start_timeout_s": 60, "urls": [url]}
        engine = TgiEngine(PoolModel("org/m", "served"), TgiArgs.model_validate(fast | args))
        try:
            await engine.start()
            yield engine
        finally:
            await engine.stop()


def quick(**fields: Any) -> Server:
    return Server(interval_s=0.001, **fields)


def asking(endpoint: str = "chat/completions", **fields: Any) -> EngineRequest:
    prompt = {"messages": HELLO} if endpoint == "chat/completions" else {"prompt": "Hello"}
    body = json.dumps({"model": "served", "max_tokens": 8, "temperature": 0, **prompt, **fields}).encode()
    return EngineRequest(cast("Any", endpoint), body, "abc")


async def whole(engine: TgiEngine, **fields: Any) -> Document:
    response = await engine.handle(asking(**fields))
    assert isinstance(response.body, bytes)
    document: Document = json.loads(response.body)
    return document


async def events_of(response: EngineResponse) -> list[str]:
    async with aclosing(cast("AsyncGenerator[bytes]", response.body)) as body:
        text = b"".join([chunk async for chunk in body]).decode()
    return [event.removeprefix("data: ") for event in text.split("\n\n") if event]


async def chunks(engine: TgiEngine, **fields: Any) -> list[Document]:
    *events, done = await events_of(await engine.handle(asking(stream=True, **fields)))
    assert done == "[DONE]"
    return [json.loads(event) for event in events]


def text_of(found: list[Document]) -> str:
    choices = [choice for chunk in found for choice in chunk["choices"]]
    return "".join(choice["delta"].get("content", "") if "delta" in choice else choice["text"] for choice in choices)


def recorded(name: str) -> Any:
    return json.loads((RESPONSES / name).read_text(encoding="utf-8"))


def kind_of(answer: Any) -> str:
    """What a recorded answer is of: "chat", "completion", or "native"."""
    first = answer[0] if isinstance(answer, list) and answer else answer
    if "generated_text" in first:
        return "native"
    return "completion" if first["object"] == "text_completion" else "chat"


ANSWERS = [name for name in RECORDED if recorded(name) and kind_of(recorded(name)) != "native"]


def test_what_is_not_replayed() -> None:
    """Two recordings are empty; one is of the native route, which has tests of its own."""
    assert len(ANSWERS) == len(RECORDED) - 3


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_of_a_real_server(name: str) -> None:
    answer = recorded(name)
    endpoint = "chat/completions" if kind_of(answer) == "chat" else "completions"
    async with pool(quick(replayed=[answer])) as engine:
        if isinstance(answer, list):
            await replay_stream(engine, endpoint, answer)
        else:
            await replay_whole(engine, endpoint, answer)


async def replay_whole(engine: TgiEngine, endpoint: str, answer: Document) -> None:
    document = await whole(engine, endpoint=endpoint)
    parsed: Any = (ChatCompletion if endpoint == "chat/completions" else Completion).model_validate(
        document, strict=True
    )
    assert (parsed.id, parsed.model) == (f"{'chatcmpl' if endpoint == 'chat/completions' else 'cmpl'}-abc", "served")
    assert [choice.index for choice in parsed.choices] == list(range(len(answer["choices"])))
    assert parsed.usage.total_tokens == answer["usage"]["total_tokens"]
    for told in answer["choices"]:
        choice = parsed.choices[told["index"]]
        if endpoint == "completions":
            assert (choice.text, choice.finish_reason) == (told["text"], told["finish_reason"])
            continue
        assert choice.message.content == told["message"]["content"]
        calls = told["message"].get("tool_calls") or []
        assert choice.finish_reason == ("tool_calls" if calls else told["finish_reason"])
        found = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
        assert found == [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
        assert all(call.id.startswith("call_abc_") for call in choice.message.tool_calls or [])


def _completion_chunk(chunk: Document) -> Completion:
    return Completion.construct(**chunk)


async def replay_stream(engine: TgiEngine, endpoint: str, answer: list[Document]) -> None:
    found = await chunks(engine, endpoint=endpoint, stream_options={"include_usage": True})
    # OpenAI's own type of a completion has no place for the null that its streams have before the end.
    parse: Any = ChatCompletionChunk.model_validate if endpoint == "chat/completions" else _completion_chunk
    parsed = [parse(chunk) for chunk in found]
    assert {chunk.id for chunk in parsed} == {f"{'chatcmpl' if endpoint == 'chat/completions' else 'cmpl'}-abc"}
    used = [usage for chunk in answer if (usage := chunk.get("usage"))]
    usages = [chunk.usage.completion_tokens for chunk in parsed if chunk.usage]
    assert usages == ([sum(usage["completion_tokens"] for usage in used)] if used else [])
    told = [choice for chunk in answer for choice in chunk["choices"]]
    indexes = {choice["index"] for choice in told}
    ends = [choice for chunk in parsed for choice in chunk.choices if choice.finish_reason]
    assert sorted(choice.index for choice in ends) == sorted(indexes)
    if endpoint == "completions":
        for index in indexes:
            text = "".join(choice["text"] for choice in told if choice["index"] == index)
            assert text_of([{"choices": [c for x in found for c in x["choices"] if c["index"] == index]}]) == text
        return
    calls = [call for choice in told for call in choice["delta"].get("tool_calls") or []]
    assert text_of(found) == "".join(choice["delta"].get("content") or "" for choice in told)
    assert {choice.finish_reason for choice in ends} == (
        {"tool_calls"} if calls else {choice["finish_reason"] for choice in told if choice["finish_reason"]} or {"stop"}
    )
    sent = [call for chunk in parsed for choice in chunk.choices for call in choice.delta.tool_calls or []]
    assert "".join(call.function.arguments for call in sent) == "".join(call["function"]["arguments"] for call in calls)
    if sent:
        assert (sent[0].id, sent[0].function.name) == ("call_abc_0_0", calls[0]["function"]["name"])
        assert {(call.id, call.function.name) for call in sent[1:]} == {(None, None)}
    roles = [choice.delta.role for chunk in parsed for choice in chunk.choices]
    assert (roles[0], set(roles[1:])) == ("assistant", {None})


async def test_a_chat_and_its_stream_agree() -> None:
    async with pool(quick()) as engine:
        document = await whole(engine)
        found = await chunks(engine, stream_options={"include_usage": True})
        assert text_of(found) == document["choices"][0]["message"]["content"]
        assert found[-1]["usage"] == document["usage"]
        assert document["usage"]["completion_tokens"] == 8
        ChatCompletion.model_validate(document, strict=True)


async def test_what_reaches_the_server() -> None:
    server = quick()
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
    async with pool(server) as engine:
        await whole(engine, top_p=1, stop="zzz", seed=-1, n=1, temperature=0.5, frequency_penalty=0, logit_bias={})
        await whole(engine, max_completion_tokens=3, messages=[{"role": "developer", "content": "Be kind."}])
        format_ = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        await whole(engine, response_format=format_, max_tokens=50)
        await whole(engine, response_format={"type": "json_object"}, max_tokens=50)
        await whole(engine, endpoint="completions", prompt=["a", "b"], max_tokens=None)
    plain, roles, by_schema, as_object, prompts = server.received
    assert plain == {
        "model": "tgi",
        "messages": HELLO,
        "max_tokens": 8,
        "temperature": 0.5,
        "stop": ["zzz"],
        "seed": 2**64 - 1,
    }
    assert (roles["messages"][0]["role"], roles["max_tokens"]) == ("system", 3)
    assert by_schema["response_format"] == {"type": "json", "value": schema}
    assert as_object["response_format"] == {"type": "json", "value": {"type": "object"}}
    assert (prompts["prompt"], prompts["max_tokens"]) == (["a", "b"], 16)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "response_format"),
        ({"unknown": 1}, "unknown"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"endpoint": "completions", "presence_penalty": 1}, "presence_penalty"),
        ({"endpoint": "completions", "stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"endpoint": "completions", "prompt": [1, 2]}, "prompt"),
        ({"endpoint": "completions", "prompt": ["a"] * 5}, "prompt"),
        ({"endpoint": "completions", "prompt": ""}, "prompt"),
    ],
    ids=str,
)
async def test_what_it_cannot_honour_never_reaches_it(fields: Document, param: str) -> None:
    server = quick()
    async with pool(server) as engine:
        with pytest.raises(ApiError) as caught:
            await whole(engine, **fields)
    assert (caught.value.status, caught.value.param, server.received) == (400, param, [])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"max_tokens": 9000}, "messages", "context_length_exceeded"),
        ({"logprobs": True, "top_logprobs": 9}, "top_logprobs", "invalid_value"),
    ],
    ids=str,
)
async def test_a_refusal_of_the_server(fields: Document, param: str, code: str, stream: bool) -> None:
    """Under HTTP 200 too, where it comes as the first event of a stream."""
    async with pool(quick()) as engine:
        with pytest.raises(ApiError) as caught:
            response = await engine.handle(asking(stream=stream, **fields))
            await events_of(response)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, param, code)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_overloaded_server_is_a_429_and_stays_up(stream: bool) -> None:
    server = quick(max_concurrent_requests=1)
    async with pool(server, unhealthy_after=1) as engine:
        response = await engine.handle(asking(stream=True, max_tokens=600))
        async with aclosing(cast("AsyncGenerator[bytes]", response.body)) as body:
            await anext(body)
            await asyncio.sleep(0.2)  # some health checks, all red
            assert [one.state for one in engine._upstream.servers] == ["up"]
            with pytest.raises(ApiError) as caught:
                await events_of(await engine.handle(asking(stream=stream)))
            assert (caught.value.status, caught.value.code) == (429, "upstream_overloaded")
            assert caught.value.headers["retry-after"]


async def test_an_error_after_the_first_token_is_an_event_without_an_end() -> None:
    async with pool(quick(fails_after=3)) as engine:
        *_, last = await events_of(await engine.handle(asking(stream=True)))
    assert json.loads(last)["error"]["message"] == "Request failed during generation"


async def test_an_error_before_the_first_token_has_a_status() -> None:
    async with pool(quick(fails_after=0)) as engine:
        with pytest.raises(ApiError, match="failed during generation") as caught:
            await events_of(await engine.handle(asking(stream=True)))
    assert caught.value.status == 400


async def test_leaving_stops_the_server() -> None:
    server = quick()
    async with pool(server) as engine:
        response = await engine.handle(asking(stream=True, max_tokens=600))
        async with aclosing(cast("AsyncGenerator[bytes]", response.body)) as body:
            await anext(body)
            assert (await engine.stats()).running == 1
        await until(lambda: not server.running, "the server has stopped the first")
        task = asyncio.create_task(whole(engine, max_tokens=600))
        await until(lambda: server.running == 1, "the server works")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: not server.running)
        assert [each.in_flight for each in engine._upstream.servers] == [0]


async def test_limits_and_stats_are_the_server_s() -> None:
    async with pool(quick(max_total_tokens=512)) as engine:
        can = engine.capabilities()
        assert (can.context_length, can.n, can.logprobs, can.json_schema) == (512, False, True, True)
        await whole(engine)
        stats = await engine.stats()
        assert (stats.running, stats.waiting, stats.generated_tokens) == (0, 0, 8)
        await engine.health()


async def test_a_key_is_sent_and_a_wrong_one_is_this_pool_s_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TGI_KEY", "right")
    async with pool(quick(api_key="right"), api_key_env="TGI_KEY") as engine:
        assert (await whole(engine))["model"] == "served"
    async with pool(quick(api_key="other"), api_key_env="TGI_KEY") as engine:
        with pytest.raises(ApiError) as caught:
            await whole(engine)
        assert caught.value.status == 502 and "right" not in caught.value.message


async def test_tools() -> None:
    async with pool(quick()) as engine:
        document = await whole(engine, tools=[TOOL], tool_choice="required", max_tokens=50)
        [call] = document["choices"][0]["message"]["tool_calls"]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("weather", {})
        found = await chunks(engine, tools=[TOOL], tool_choice="required", max_tokens=50)
        assert found[-1]["choices"][0]["finish_reason"] == "tool_calls"
        answer = {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
        asked = [*HELLO, {"role": "assistant", "tool_calls": [call]}, answer]
        assert (await whole(engine, messages=asked))["choices"][0]["message"]["content"]

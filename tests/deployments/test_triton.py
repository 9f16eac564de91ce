"""The Triton engine over a stand-in for its servers, in both dialects."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast

import pytest
from pydantic import ValidationError

from deployments.engine import EngineRequest, PoolModel
from deployments.errors import ApiError
from deployments.triton import TritonArgs, TritonEngine
from deployments.triton_dialects import Text
from deployments.upstream_stats import UpstreamStats, at_port
from tests.deployments.openai_layer.conftest import byte_level_bpe, wrapped
from tests.deployments.test_tgi import Document, events_of, text_of
from tests.deployments.test_tgi import served as serving
from tests.fakes.triton import Server
from tests.fakes.writing import WORDS

HELLO = [{"role": "user", "content": "Hello"}]
BOTH = pytest.mark.parametrize("dialect", ["ensemble", "llmapi"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PoolModel:
    folder = tmp_path_factory.mktemp("model")
    cast("Any", wrapped(byte_level_bpe([" ".join(WORDS)] * 4))).save_pretrained(folder)
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 1024}')
    return PoolModel(str(folder), "served")


@asynccontextmanager
async def pool(model: PoolModel, server: Server, **args: Any) -> AsyncGenerator[TritonEngine]:
    async with serving(server) as url:
        needed = {"dialect": server.dialect, "context_length": 1024, "urls": [url]}
        quick = {"health_interval_s": 0.05, "start_timeout_s": 5, "accumulates": server.accumulates}
        engine = TritonEngine(model, TritonArgs.model_validate(needed | quick | args))
        try:
            await engine.start()
            yield engine
        finally:
            await engine.stop()


def made(dialect: Any, **fields: Any) -> Server:
    return Server(dialect, interval_s=0.001, **fields)


def asking(endpoint: str = "chat/completions", **fields: Any) -> EngineRequest:
    prompt = {"messages": HELLO} if endpoint == "chat/completions" else {"prompt": "Hello"}
    body = json.dumps({"model": "served", "max_tokens": 8, "temperature": 0, **prompt, **fields}).encode()
    return EngineRequest(cast("Any", endpoint), body, "abc")


async def whole(engine: TritonEngine, **fields: Any) -> Document:
    response = await engine.handle(asking(**fields))
    assert isinstance(response.body, bytes)
    document: Document = json.loads(response.body)
    return document


async def chunks(engine: TritonEngine, **fields: Any) -> list[Document]:
    *events, done = await events_of(await engine.handle(asking(stream=True, **fields)))
    assert done == "[DONE]"
    return [json.loads(event) for event in events]


@BOTH
@pytest.mark.parametrize("accumulates", [False, True])
async def test_a_chat_and_its_stream_agree(model: PoolModel, dialect: str, accumulates: bool) -> None:
    async with pool(model, made(dialect, accumulates=accumulates)) as engine:
        document = await whole(engine)
        [choice] = document["choices"]
        assert (choice["finish_reason"], document["usage"]["completion_tokens"]) == ("length", 8)
        assert len(choice["message"]["content"].split()) == 8
        found = await chunks(engine)
        assert text_of(found) == choice["message"]["content"]
        assert found[-1]["choices"][0]["finish_reason"] == "length"


@BOTH
async def test_an_answer_that_ends_by_itself(model: PoolModel, dialect: str) -> None:
    async with pool(model, made(dialect, pieces=["one", " two"])) as engine:
        [choice] = (await whole(engine, max_tokens=100))["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("one two", "stop")


@BOTH
async def test_stop_strings_n_and_several_prompts(model: PoolModel, dialect: str) -> None:
    server = made(dialect, pieces=["one", " two", " three", " four"])
    async with pool(model, server) as engine:
        [choice] = (await whole(engine, stop=["thr"]))["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("one two ", "stop")
        document = await whole(engine, endpoint="completions", prompt=["a", "b"], n=2)
        assert [choice["index"] for choice in document["choices"]] == [0, 1, 2, 3]
        assert [body["text_input"] for body in server.received[1:]] == ["a", "a", "b", "b"]
        assert len(set(server.ids)) == 5 and all(server.ids)


async def test_what_reaches_an_ensemble(model: PoolModel) -> None:
    server = made("ensemble")
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
    format_ = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with pool(model, server, guided_decoding=True) as engine:
        assert engine.capabilities().json_schema
        await whole(engine)
        await whole(engine, temperature=0.5, top_p=0.9, seed=7, frequency_penalty=1, presence_penalty=-1)
        answer = await whole(engine, response_format=format_, max_tokens=50)
        await whole(engine, response_format={"type": "json_object"}, max_tokens=50)
    plain, sampled, guided, as_object = server.received
    assert plain["text_input"] == "<|start|>user\nHello<|end|><|start|>assistant\n"
    del plain["text_input"], plain["seed"]
    assert plain == {"max_tokens": 8, "stream": True, "exclude_input_in_output": True, "top_k": 1}
    assert (sampled["temperature"], sampled["top_p"], sampled["seed"]) == (0.5, 0.9, 7)
    assert (sampled["frequency_penalty"], sampled["presence_penalty"]) == (1, -1)
    assert json.loads(guided["guided_decoding_guide"]) == schema
    assert set(json.loads(answer["choices"][0]["message"]["content"])) == {"ok"}
    assert as_object["guided_decoding_guide_type"] == "json"


async def test_what_reaches_the_pytorch_backend(model: PoolModel) -> None:
    server = made("llmapi")
    async with pool(model, server) as engine:
        await whole(engine, temperature=1)
        with pytest.raises(ApiError) as caught:
            await whole(engine, response_format={"type": "json_object"})
        assert caught.value.param == "response_format"
    [body] = server.received
    assert body.pop("text_input") and body.pop("sampling_param_seed")
    assert body == {
        "streaming": True,
        "return_finish_reason": True,
        "sampling_param_max_tokens": 8,
        "sampling_param_exclude_input_from_output": True,
        "sampling_param_temperature": 1,
        "sampling_param_top_p": 1.0,  # else it would be greedy
    }


@BOTH
async def test_leaving_stops_the_server(model: PoolModel, dialect: str) -> None:
    server = made(dialect)
    server.interval_s = 0.01
    async with pool(model, server) as engine:
        response = await engine.handle(asking(stream=True, max_tokens=600))
        async with aclosing(cast("AsyncGenerator[bytes]", response.body)) as body:
            await anext(body)
            assert (await engine.stats()).running == server.running == 1
        task = asyncio.create_task(whole(engine, max_tokens=600))
        while server.running < 2 and len(server.ids) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(3):
            while server.running:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (await engine.stats()).running == 0
    assert server.cancelled == (server.ids if dialect == "llmapi" else [])


@BOTH
async def test_an_answer_that_ended_is_not_cancelled(model: PoolModel, dialect: str) -> None:
    server = made(dialect)
    async with pool(model, server) as engine:
        await whole(engine)
    assert server.cancelled == []


@BOTH
async def test_errors(model: PoolModel, dialect: str) -> None:
    async with pool(model, made(dialect, fails_after=0)) as engine:
        with pytest.raises(ApiError, match="The Triton server failed: Executor failed") as caught:
            await whole(engine)
        assert caught.value.status == 500
    async with pool(model, made(dialect, fails_after=3)) as engine:
        *_, last = await events_of(await engine.handle(asking(stream=True)))
        assert "error" in json.loads(last)
        with pytest.raises(ApiError, match="Executor failed"):
            await whole(engine)
    async with pool(model, made(dialect, max_input_len=3)) as engine:
        with pytest.raises(ApiError) as caught:
            await whole(engine, endpoint="completions", prompt="one two three four five")
        assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
    async with pool(model, made(dialect), model_name="other") as engine:
        with pytest.raises(ApiError) as caught:
            await whole(engine)
        assert caught.value.status == 502


async def test_counts_are_the_server_s_where_its_metrics_can_be_read(model: PoolModel) -> None:
    server = made("ensemble", batch=1)
    server.interval_s = 0.01
    async with pool(model, server) as engine:
        port = int(engine._args.urls[0].rpartition(":")[2])
        engine._stats = UpstreamStats(engine._upstream, "triton", port)
        tasks = [asyncio.create_task(whole(engine, max_tokens=600)) for _ in range(3)]
        async with asyncio.timeout(5):
            while (stats := await engine.stats()).waiting != 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert stats.running == 1
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_metrics_are_on_a_port_of_their_own() -> None:
    assert at_port("http://10.0.0.5:8000", 8002) == "http://10.0.0.5:8002"
    assert at_port("https://[::1]:8000", 8002) == "https://[::1]:8002"
    assert at_port("http://x:1", None) == "http://x:1"


async def test_an_end_that_nobody_asked_for_is_no_answer(model: PoolModel) -> None:
    async with pool(model, made("llmapi", ends_as="cancelled")) as engine:
        with pytest.raises(RuntimeError, match="cancelled"):
            await whole(engine)


async def test_a_server_that_is_not_ready_gets_nothing(model: PoolModel) -> None:
    server = made("ensemble")
    async with pool(model, server, unhealthy_after=1) as engine:
        server.ready = False
        async with asyncio.timeout(5):
            while engine._upstream.servers[0].state == "up":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        with pytest.raises(ApiError) as caught:
            await whole(engine)
        assert (caught.value.status, caught.value.code) == (503, "upstream_down")
        await engine.health()


@pytest.mark.parametrize("accumulates", [False, True])
def test_characters_are_held_back_until_they_are_whole(accumulates: bool) -> None:
    text = Text(accumulates)
    events = ["a", "a\ufffd", "aé", "aé!"] if accumulates else ["a", "\ufffd", "", "!"]
    found = [text.feed({"text_output": event}) for event in events]
    assert found == (["a", "", "é", "!"] if accumulates else ["a", "", "", "\ufffd!"])
    assert text.flush() == ""


def test_what_never_becomes_whole_is_shown_at_the_end() -> None:
    text = Text(accumulates=True)
    assert [text.feed({"text_output": event}) for event in ("a", "a\ufffd")] == ["a", ""]
    assert (text.flush(), text.whole) == ("\ufffd", "a\ufffd")


async def test_a_token_that_the_server_puts_before_a_prompt_is_not_sent_twice(model: PoolModel) -> None:
    for adds, sent in ((True, "Hello"), (False, "<|start|>Hello")):
        server = made("ensemble")
        async with pool(model, server, adds_special_tokens=adds) as engine:
            engine._tokenizer.bos_token = "<|start|>"
            await whole(engine, endpoint="completions", prompt=[1, *engine._tokenizer.encode("Hello")])
        assert server.received[0]["text_input"] == sent


@pytest.mark.parametrize(
    "args",
    [
        {"dialect": "grpc"},
        {"dialect": "llmapi", "guided_decoding": True},
        {"dialect": "ensemble", "model_name": "../x"},
        {"dialect": "ensemble", "context_length": None},
    ],
    ids=str,
)
def test_args_that_do_not_fit(args: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TritonArgs.model_validate({"urls": ["http://127.0.0.1:8000"], "context_length": 1024} | args)

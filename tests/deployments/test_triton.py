"""The Triton engine over a stand-in for its servers, in both dialects."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError

from deployments.engine import EngineRequest, PoolModel
from deployments.errors import ApiError
from deployments.triton import TritonArgs, TritonEngine
from deployments.upstream_stats import UpstreamStats, at_port
from tests.deployments.openai_layer.conftest import byte_level_bpe, wrapped
from tests.deployments.test_tgi import Document, events_of, text_of
from tests.deployments.test_tgi import served as serving
from tests.fakes.triton import Server
from tests.fakes.writing import WORDS
from tests.waiting import until

HELLO = [{"role": "user", "content": "Hello"}]
BOTH = pytest.mark.parametrize("dialect", ["ensemble", "llmapi"])


def saved(folder: Path, backend: Any) -> PoolModel:
    cast("Any", wrapped(backend)).save_pretrained(folder)
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 1024}')
    return PoolModel(str(folder), "served")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PoolModel:
    return saved(tmp_path_factory.mktemp("model"), byte_level_bpe([" ".join(WORDS)] * 4))


@asynccontextmanager
async def pool(model: PoolModel, server: Server, **args: Any) -> AsyncGenerator[TritonEngine]:
    async with serving(server) as url:
        needed = {"dialect": server.dialect, "context_length": 1024, "urls": [url]}
        quick = {"health_interval_s": 0.05, "start_timeout_s": 60, "accumulates": server.accumulates}
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
        assert [headers["triton-request-id"] for headers in server.headers] == server.ids


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
    asked = {"stream": True, "exclude_input_in_output": True, "return_num_output_tokens": True}
    assert plain == {"max_tokens": 8, "top_k": 1, **asked}
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
        await until(lambda: len(server.ids) == 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: not server.running)
        assert (await engine.stats()).running == 0
    assert server.cancelled == server.ids


@BOTH
async def test_leaving_before_the_first_token(model: PoolModel, dialect: str) -> None:
    server = made(dialect, batch=1)
    server.interval_s = 0.02
    async with pool(model, server) as engine:
        first = asyncio.create_task(whole(engine, max_tokens=600))
        await until(lambda: server.running)
        second = await engine.handle(asking(stream=True, max_tokens=600))
        reading = asyncio.create_task(anext(cast("AsyncGenerator[bytes]", second.body)))
        await until(lambda: server.waiting)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await until(lambda: server.cancelled == server.ids[1:])
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await until(lambda: not server.running and not server.waiting)


@BOTH
async def test_a_stop_string_ends_the_server_s_work(model: PoolModel, dialect: str) -> None:
    server = made(dialect, pieces=["one", " two", *[" more"] * 500])
    server.interval_s = 0.01
    async with pool(model, server) as engine:
        [choice] = (await whole(engine, stop=["two"], max_tokens=600))["choices"]
        assert choice["message"]["content"] == "one "
        await until(lambda: not server.running)
    assert server.cancelled == server.ids


@BOTH
async def test_an_answer_that_ended_is_not_cancelled(model: PoolModel, dialect: str) -> None:
    server = made(dialect)
    async with pool(model, server) as engine:
        await whole(engine)
    assert server.cancelled == []


async def test_a_model_that_can_not_be_told_is_named_in_the_log(
    model: PoolModel, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.triton_cancel.logger", logging.getLogger("triton-cancel"))
    server = made("ensemble")
    async with pool(model, server, tensorrt_llm_model_name="other") as engine:
        await whole(engine, stop=["a", "e", "i", "o", "u"], max_tokens=600)
    assert "may still work on a request whose client has left: status 404" in caplog.text


@BOTH
async def test_errors(model: PoolModel, dialect: str) -> None:
    server = made(dialect, fails_after=0)
    async with pool(model, server) as engine:
        for _ in range(2):
            with pytest.raises(ApiError) as caught:
                await whole(engine)
            assert (caught.value.status, caught.value.message) == (500, "The Triton server failed: Executor failed")
    assert server.cancelled == []  # what has failed needn't be stopped
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
    async with pool(model, made(dialect, busy=True)) as engine:
        with pytest.raises(ApiError, match="Exceeds maximum queue size") as caught:
            await whole(engine)
        assert caught.value.status == 503


async def test_a_server_that_is_busy_passes_a_request_to_another(model: PoolModel) -> None:
    busy, free = made("llmapi", busy=True), made("llmapi", pieces=["one", *[" more"] * 500])
    free.interval_s = 0.01
    async with serving(busy) as first, pool(model, free) as engine:
        args = engine._args.model_copy(update={"urls": (first, *engine._args.urls)})
        both = TritonEngine(model, args)
        await both.start()
        try:
            for _ in range(2):  # whichever is asked first
                assert (await whole(both, stop=["m"], max_tokens=600))["choices"][0]["message"]["content"] == "one "
        finally:
            await both.stop()
    assert busy.ids and len(free.ids) == 2
    assert free.cancelled == free.ids and busy.cancelled == []  # only who answers is told


@pytest.mark.parametrize("counts", [True, False])
async def test_usage_is_the_server_s_count_where_it_counts(model: PoolModel, counts: bool) -> None:
    server = made("ensemble", pieces=["garden"] * 7, per_event=3, counts=counts)
    async with pool(model, server) as engine:
        document = await whole(engine, max_tokens=7)
        spelt = len(engine._tokenizer.encode("garden" * 7))
        assert spelt > 7  # a garden is more than one of this tokenizer's tokens
        assert (document["choices"][0]["finish_reason"], document["usage"]["completion_tokens"]) == ("length", 7)
        document = await whole(engine, max_tokens=100)
        assert document["choices"][0]["finish_reason"] == "stop"
        assert document["usage"]["completion_tokens"] == (7 if counts else spelt)
        document = await whole(engine, max_tokens=100, stop=["ngarden"])  # found in the first event
        assert document["usage"]["completion_tokens"] == (3 if counts else len(engine._tokenizer.encode("garden" * 3)))


async def test_a_field_for_which_a_model_has_no_input_is_refused(model: PoolModel) -> None:
    server = made("llmapi", lacks=frozenset({"sampling_param_presence_penalty"}))
    async with pool(model, server) as engine:
        await whole(engine, frequency_penalty=1)
        with pytest.raises(ApiError) as caught:
            await whole(engine, presence_penalty=1)
        assert (caught.value.status, caught.value.param) == (400, "presence_penalty")
        assert "triton" in caught.value.message
    assert len(server.received) == 1


async def test_a_model_without_the_inputs_that_the_pool_needs(model: PoolModel) -> None:
    for server, args in (
        (made("ensemble", lacks=frozenset({"guided_decoding_guide"})), {"guided_decoding": True}),
        (made("llmapi"), {"dialect": "ensemble", "model_name": "tensorrt_llm"}),
    ):
        with pytest.raises(ValueError, match="has no input .*(guided_decoding_guide|max_tokens).*'dialect' ensemble"):
            async with pool(model, server, **args):
                pass


async def test_counts_are_the_server_s_where_its_metrics_can_be_read(model: PoolModel) -> None:
    server = made("ensemble", batch=1)
    server.interval_s = 0.01
    async with pool(model, server) as engine:
        port = int(engine._args.urls[0].rpartition(":")[2])
        engine._stats = UpstreamStats(engine._upstream, "triton", port)
        tasks = [asyncio.create_task(whole(engine, max_tokens=600)) for _ in range(3)]
        async with asyncio.timeout(60):
            while (stats := await engine.stats()).waiting != 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # until the next look
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
        await until(lambda: engine._upstream.servers[0].state != "up")
        with pytest.raises(ApiError) as caught:
            await whole(engine)
        assert (caught.value.status, caught.value.code) == (503, "upstream_down")
        await engine.health()


@pytest.mark.parametrize(("adds", "sent"), [(True, "Hi"), (False, "<|start|>Hi")])
async def test_a_token_that_the_server_puts_before_a_prompt_is_not_sent_twice(
    tmp_path: Path, adds: bool, sent: str
) -> None:
    from tokenizers.processors import TemplateProcessing

    backend = byte_level_bpe(["hello"])
    backend.post_processor = TemplateProcessing(single="<|start|> $A", special_tokens=[("<|start|>", 1)])
    assert await _sent(saved(tmp_path, backend), adds) == sent


async def test_a_token_that_a_tokenizer_only_knows_is_sent(tmp_path: Path) -> None:
    """A chat template may begin with it: the server wouldn't put it again."""
    assert await _sent(saved(tmp_path, byte_level_bpe(["hello"])), adds=True) == "<|start|>Hi"


async def _sent(model: PoolModel, adds: bool) -> Any:
    config = Path(model.source) / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "bos_token": "<|start|>"}))
    server = made("ensemble")
    async with pool(model, server, adds_special_tokens=adds) as engine:
        prompt = [1, *engine._tokenizer.encode("Hi", add_special_tokens=False)]
        await whole(engine, endpoint="completions", prompt=prompt)
    return server.received[0]["text_input"]


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

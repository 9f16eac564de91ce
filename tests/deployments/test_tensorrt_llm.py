"""The TensorRT-LLM engine over a stand-in for the package, through the shared OpenAI layer."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError

from deployments import tensorrt_contract
from deployments.engine import Adapter, EngineDeadError, EngineRequest, PoolModel
from deployments.errors import ApiError
from deployments.openai_layer.tokens import Sampling
from deployments.tensorrt_llm import TensorrtLLMArgs, TensorrtLLMEngine
from tests.deployments.openai_layer.conftest import byte_level_bpe, wrapped
from tests.fakes import tensorrt_llm_api
from tests.fakes.writing import WORDS

SITE = Path(tensorrt_llm_api.__file__).with_name("site")
HELLO = [{"role": "user", "content": "Hello"}]
Document = dict[str, Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PoolModel:
    folder = tmp_path_factory.mktemp("model")
    cast("Any", wrapped(byte_level_bpe([" ".join(WORDS)] * 4))).save_pretrained(folder)
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 1024}')
    (folder / "generation_config.json").write_text('{"eos_token_id": [0, 7]}')
    return PoolModel(str(folder), "served")


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package, for this test only."""
    monkeypatch.syspath_prepend(SITE)
    monkeypatch.setattr(tensorrt_llm_api, "INTERVAL_S", 0.001)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]


@asynccontextmanager
async def started(model: PoolModel, **args: Any) -> AsyncIterator[TensorrtLLMEngine]:
    engine = TensorrtLLMEngine(model, TensorrtLLMArgs.model_validate(args))
    try:
        await engine.start()
        yield engine
    finally:
        await engine.stop()
        assert engine._in_flight == 0


def asking(endpoint: str = "chat/completions", adapter: str | None = None, **fields: Any) -> EngineRequest:
    prompt = {"messages": HELLO} if endpoint == "chat/completions" else {"prompt": "Hello"}
    body = json.dumps({"model": "m", "max_tokens": 8, **prompt, **fields}).encode()
    return EngineRequest(cast("Any", endpoint), body, "id1", adapter)


async def whole(engine: TensorrtLLMEngine, request: EngineRequest) -> Document:
    response = await engine.handle(request)
    assert isinstance(response.body, bytes)
    document: Document = json.loads(response.body)
    return document


async def events(engine: TensorrtLLMEngine, request: EngineRequest) -> list[str]:
    response = await engine.handle(request)
    assert not isinstance(response.body, bytes)
    text = b"".join([chunk async for chunk in response.body]).decode()
    return [event.removeprefix("data: ") for event in text.split("\n\n") if event]


async def submitted(engine: TensorrtLLMEngine) -> list[tensorrt_llm_api.RequestOutput]:
    """The requests that the package has, once it has some."""
    async with asyncio.timeout(60):
        while not (running := [each for each in engine._llm.running.values() if not each.finished]):  # noqa: ASYNC110
            await asyncio.sleep(0)
    return running


async def until_idle(engine: TensorrtLLMEngine) -> None:
    async with asyncio.timeout(60):
        while (stats := await engine.stats()).running + stats.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # until the next look


async def test_a_chat_and_its_stream_agree(model: PoolModel) -> None:
    async with started(model) as engine:
        document = await whole(engine, asking(temperature=0))
        [choice] = document["choices"]
        assert (document["model"], choice["finish_reason"]) == ("served", "length")
        assert document["usage"]["completion_tokens"] == 8
        *chunks, done = await events(engine, asking(temperature=0, stream=True))
        assert done == "[DONE]"
        deltas = [json.loads(chunk)["choices"][0] for chunk in chunks]
        assert "".join(delta["delta"].get("content", "") for delta in deltas) == choice["message"]["content"]
        assert [delta["finish_reason"] for delta in deltas][-1] == "length"


@pytest.mark.parametrize("keeps_end", [True, False])
@pytest.mark.parametrize("end", [0, 7], ids=["the tokenizer's end", "one of several ends"])
async def test_an_answer_that_ends_by_itself(
    model: PoolModel, monkeypatch: pytest.MonkeyPatch, keeps_end: bool, end: int
) -> None:
    monkeypatch.setattr(tensorrt_llm_api, "KEEPS_END", keeps_end)
    monkeypatch.setattr(tensorrt_llm_api, "END", end)
    async with started(model) as engine:
        assert (engine._ends.end_id, engine._ends.stop_token_ids) == (0, (7,))
        document = await whole(engine, asking(response_format={"type": "json_object"}, max_tokens=200))
        assert isinstance(json.loads(document["choices"][0]["message"]["content"]), dict)
        assert document["choices"][0]["finish_reason"] == "stop"


async def test_what_reaches_the_package(model: PoolModel) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
    format_ = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    async with started(model, max_seq_len=512) as engine:
        await whole(engine, asking(frequency_penalty=1, presence_penalty=-1, seed=5, top_p=0.5, temperature=0.7))
        answer = await whole(engine, asking(response_format=format_, max_tokens=100))
        await whole(engine, asking("completions", logprobs=2, n=2))
        _, plain, guided, *two = engine._llm.calls  # the first warmed it up
    assert (plain.max_tokens, plain.seed, plain.top_p, plain.temperature) == (8, 5, 0.5, 0.7)
    assert (plain.frequency_penalty, plain.presence_penalty, plain.detokenize) == (1, -1, False)
    assert json.loads(guided.guided_decoding.json) == schema
    assert set(json.loads(answer["choices"][0]["message"]["content"])) == {"ok"}
    assert [params.logprobs for params in two] == [2, 2]
    assert two[0].seed != two[1].seed
    assert engine._llm is None


async def test_log_probabilities(model: PoolModel) -> None:
    async with started(model) as engine:
        document = await whole(engine, asking(logprobs=True, top_logprobs=3))
        plain = await whole(engine, asking(logprobs=True, top_logprobs=0))
    for token in document["choices"][0]["logprobs"]["content"]:
        assert len(token["top_logprobs"]) == 3
        assert token["logprob"] == token["top_logprobs"][0]["logprob"] < 0
    assert [token["top_logprobs"] for token in plain["choices"][0]["logprobs"]["content"]] == [[]] * 8


async def test_leaving_a_whole_answer_aborts(model: PoolModel) -> None:
    async with started(model) as engine:
        task = asyncio.create_task(whole(engine, asking(max_tokens=900)))
        [running] = await submitted(engine)
        async with asyncio.timeout(60):
            while (await engine.stats()).running != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # until the next look
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert running.aborted()
        await until_idle(engine)


async def test_closing_a_stream_aborts(model: PoolModel) -> None:
    async with started(model) as engine:
        response = await engine.handle(asking(stream=True, max_tokens=900))
        async with aclosing(cast("AsyncGenerator[bytes]", response.body)) as body:
            await anext(body)
            [running] = engine._llm.running.values()
        assert running.aborted()
        await until_idle(engine)
        assert (await engine.stats()).generated_tokens > 0


async def test_a_finished_request_is_not_aborted(model: PoolModel) -> None:
    async with started(model) as engine:
        task = asyncio.create_task(whole(engine, asking()))
        [running] = await submitted(engine)
        await task
        assert not running.aborted()


async def test_a_request_that_fails_is_one_request(model: PoolModel) -> None:
    async with started(model) as engine:
        task = asyncio.create_task(whole(engine, asking(max_tokens=900)))
        await submitted(engine)
        engine._llm.fail_requests("Prompt length (9) exceeds maximum input length (8)")
        with pytest.raises(ApiError, match="exceeds maximum") as caught:
            await task
        assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
        await engine.health()
        assert (await whole(engine, asking()))["usage"]["completion_tokens"] == 8


async def test_a_request_that_fails_after_its_first_token_is_an_event(model: PoolModel) -> None:
    async with started(model) as engine:
        response = await engine.handle(asking(stream=True, max_tokens=900))
        body = cast("AsyncGenerator[bytes]", response.body)
        await anext(body)
        engine._llm.fail_requests("no")
        rest = [chunk async for chunk in body]
        assert b'"error"' in rest[-1] and b"[DONE]" not in b"".join(rest)


@pytest.mark.parametrize("reason", ["timeout", "cancelled"])
async def test_an_end_that_nobody_asked_for_is_no_answer(model: PoolModel, reason: str) -> None:
    async with started(model) as engine:
        task = asyncio.create_task(whole(engine, asking(max_tokens=900)))
        await submitted(engine)
        engine._llm.end_requests(reason)
        with pytest.raises(RuntimeError, match=reason):
            await task


async def test_a_dead_executor_is_a_dead_engine(model: PoolModel) -> None:
    async with started(model) as engine:
        task = asyncio.create_task(whole(engine, asking(max_tokens=900)))
        await submitted(engine)
        await engine.health()
        engine._llm.die("out of memory")
        with pytest.raises(EngineDeadError, match="executor failed: out of memory"):
            await task
        for ask in (engine.health, engine.stats):
            with pytest.raises(EngineDeadError, match="out of memory"):
                await ask()
        with pytest.raises(EngineDeadError):
            await whole(engine, asking())


async def test_a_shutdown_in_flight(model: PoolModel) -> None:
    async with started(model) as engine:
        engine._llm.shutdown()
        with pytest.raises(EngineDeadError, match="shutting down"):
            await whole(engine, asking())
    async with started(model) as engine:
        engine._llm.shutdown()
        with pytest.raises(EngineDeadError, match="has shut down"):
            await engine.health()


async def test_a_prompt_that_the_package_refuses(model: PoolModel) -> None:
    async with started(model, max_num_tokens=32, enable_chunked_prefill=False) as engine:
        with pytest.raises(ApiError, match="max_num_tokens") as caught:
            await whole(engine, asking("completions", prompt="river " * 40))
        assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")


async def test_adapters(model: PoolModel, tmp_path: Path) -> None:
    lora = {"enable_lora": True, "lora_config": {"max_lora_rank": 16}}
    async with started(model, **lora) as engine:
        assert (engine.capabilities().lora, engine.capabilities().max_lora_rank) == (True, 16)
        await engine.load_adapter(Adapter("poet", tmp_path))
        plain = await whole(engine, asking(temperature=0))
        poet = await whole(engine, asking(temperature=0, adapter="poet"))
        assert (plain["model"], poet["model"]) == ("served", "poet")
        assert plain["choices"] != poet["choices"]
        await engine.unload_adapter("poet")
        with pytest.raises(ApiError, match="refuses the adapter"):
            await engine.load_adapter(Adapter("gone", tmp_path / "gone"))
        assert engine._adapters == {}


async def test_an_engine_without_adapters_refuses_them(model: PoolModel, tmp_path: Path) -> None:
    async with started(model) as engine:
        assert not engine.capabilities().lora
        with pytest.raises(ApiError, match="LoRA is not enabled"):
            await engine.load_adapter(Adapter("poet", tmp_path))


async def test_an_unknown_keyword_ends_the_start_with_its_name(model: PoolModel) -> None:
    with pytest.raises(ValueError, match="max_seqlen"):
        async with started(model, max_seqlen=9):
            pass


async def test_stats_of_an_idle_engine(model: PoolModel) -> None:
    async with started(model) as engine:
        await until_idle(engine)
        before = await engine.stats()
        await whole(engine, asking())
        await until_idle(engine)
        after = await engine.stats()
        assert after.generated_tokens - before.generated_tokens == 8
        assert after.prompt_tokens > before.prompt_tokens
        assert after.kv_cache_usage is not None and after.prefix_hit_rate is not None


def test_what_it_can_is_told_before_it_starts(model: PoolModel) -> None:
    can = TensorrtLLMEngine(model, TensorrtLLMArgs.model_validate({"max_seq_len": 256})).capabilities()
    assert (can.context_length, can.json_schema, can.logprobs, can.n, can.tools) == (256, True, True, True, ())
    bare = TensorrtLLMEngine(model, TensorrtLLMArgs.model_validate({"guided_decoding_backend": None})).capabilities()
    assert (bare.context_length, bare.json_schema) == (1024, False)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"mode": "tensorrt"}, "needs 'checkpoint', which"),
        ({"mode": "triton"}, "'pytorch' or 'tensorrt'"),
        ({"checkpoint": "x"}, "belongs to mode tensorrt"),
        ({"build": {}}, "belongs to mode tensorrt"),
        ({"tokenizer": "x"}, "set by the pool's own keys"),
        ({"tensor_parallel_size": 0}, "greater than or equal to 1"),
    ],
)
def test_args_that_do_not_fit(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TensorrtLLMArgs.model_validate(args)


async def test_it_is_not_healthy_before_it_starts(model: PoolModel) -> None:
    engine = TensorrtLLMEngine(model, TensorrtLLMArgs())
    for ask in (engine.health, engine.stats):
        with pytest.raises(EngineDeadError, match="not started"):
            await ask()
    await engine.stop()


async def test_tokens_are_asked_for_one_by_one(model: PoolModel) -> None:
    """Not in one go at the end: streaming is asked of the package, for whole answers too."""
    async with started(model) as engine:
        stream = engine.generate([1, 2, 3], Sampling(max_tokens=50))
        async with aclosing(stream):
            await anext(stream)
            assert engine._llm.running
        assert [params.max_tokens for params in engine._llm.calls] == [2, 50]


def test_the_stand_in_keeps_the_contract() -> None:
    assert tensorrt_contract.differences() == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda api: setattr(api.LLM, "generate_async", lambda self, inputs: None), "has no parameter sampling_params"),
        (lambda api: delattr(api.LLM, "_check_health"), "LLM._check_health isn't there"),
        (lambda api: delattr(api.RequestOutput, "abort"), "RequestOutput.abort isn't there"),
    ],
)
def test_another_contract_is_told(monkeypatch: pytest.MonkeyPatch, change: Any, sentence: str) -> None:
    api = tensorrt_llm_api
    for owner, name in ((api.LLM, "generate_async"), (api.LLM, "_check_health"), (api.RequestOutput, "abort")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    change(api)
    assert any(sentence in line for line in tensorrt_contract.differences())


def test_another_default_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tensorrt_contract.DEFAULTS, "tensorrt_llm:SamplingParams.max_tokens", ("max_tokens", 16))
    assert tensorrt_contract.differences() == ["tensorrt_llm:SamplingParams.max_tokens is 32 by default, not 16"]

"""The simulated engine through its OpenAI layer, and through a pool where the pool has a part in it."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast

import pytest
from pydantic import ValidationError

from deployments import registry
from deployments.engine import EngineDeadError, EngineRequest, EngineStats, PoolModel
from deployments.errors import ApiError
from deployments.pool import Pool
from deployments.simulated import SimulatedArgs, SimulatedEngine
from deployments.wire import pack

Document = dict[str, Any]
FAST: Document = {"time_factor": 0, "answer_tokens": 12}
HEADER = {"x-enginehouse-simulated": "true"}


@asynccontextmanager
async def started(**args: Any) -> AsyncIterator[SimulatedEngine]:
    engine = SimulatedEngine(PoolModel("any-name", "any-name"), SimulatedArgs.model_validate(FAST | args))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def chat(content: str = "Hi", **more: Any) -> EngineRequest:
    body = {"model": "any-name", "messages": [{"role": "user", "content": content}], **more}
    return EngineRequest("chat/completions", json.dumps(body).encode(), "id1")


def completion(prompt: Any = "Hi", **more: Any) -> EngineRequest:
    return EngineRequest("completions", json.dumps({"model": "any-name", "prompt": prompt, **more}).encode(), "id1")


async def whole(engine: SimulatedEngine, request: EngineRequest) -> Document:
    response = await engine.handle(request)
    assert isinstance(response.body, bytes)
    document: Document = json.loads(response.body)
    return document


async def opened(engine: SimulatedEngine, request: EngineRequest) -> AsyncGenerator[bytes]:
    response = await engine.handle(request)
    assert not isinstance(response.body, bytes)
    return cast("AsyncGenerator[bytes]", response.body)


async def text_of(engine: SimulatedEngine, request: EngineRequest) -> str:
    """The text of a stream that ends well."""
    async with aclosing(await opened(engine, request)) as stream:
        *events, done = [event.removeprefix(b"data: ").strip() async for event in stream]
    assert done == b"[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events]
    return "".join(choice["delta"].get("content", "") for choice in choices)


async def until(true: Callable[[EngineStats], bool], engine: SimulatedEngine) -> EngineStats:
    async with asyncio.timeout(60):
        while not true(stats := await engine.stats()):  # noqa: ASYNC110  # an engine tells nobody of its steps
            await asyncio.sleep(0.001)
    return stats


def content(document: Document) -> str:
    text: str = document["choices"][0]["message"]["content"]
    return text


async def test_a_whole_chat_answer() -> None:
    async with started() as engine:
        document = await whole(engine, chat(temperature=0))
    assert document["model"] == "any-name"
    assert document["choices"][0]["finish_reason"] == "stop"
    assert len(content(document).split()) == 11
    assert document["usage"]["completion_tokens"] == 12


async def test_max_tokens_cuts_it() -> None:
    async with started() as engine:
        document = await whole(engine, chat(temperature=0, max_tokens=3))
        assert content(await whole(engine, chat(temperature=0))).startswith(content(document))
    assert document["choices"][0]["finish_reason"] == "length"
    assert document["usage"]["completion_tokens"] == 3


async def test_a_stop_string_ends_it_and_frees_its_blocks() -> None:
    async with started(text="one two three four") as engine:
        document = await whole(engine, chat(stop="three"))
        assert (content(document), document["choices"][0]["finish_reason"]) == ("one two ", "stop")
        stats = await engine.stats()
    assert (stats.running, stats.kv_cache_usage) == (0, 0)


async def test_a_given_text_is_what_comes() -> None:
    text = "Grüße 😀 日本語\nend"
    async with started(text=text) as engine:
        assert content(await whole(engine, chat())) == text
        assert await text_of(engine, chat(stream=True)) == text
        document = await whole(engine, completion(max_tokens=100))
    assert document["choices"][0]["text"] == text


async def test_stream_and_whole_answer_agree_and_a_restart_changes_nothing() -> None:
    seen = set()
    for _ in range(2):
        async with started() as engine:
            cases: list[Document] = [{"temperature": 0}, {"temperature": 0, "seed": 4}]
            for more in cases:
                seen.add(content(await whole(engine, chat(**more))))
                seen.add(await text_of(engine, chat(stream=True, **more)))
    assert len(seen) == 1


async def test_seeds_prompts_and_choices_differ() -> None:
    async with started() as engine:
        seeded = [content(await whole(engine, chat(seed=seed))) for seed in (1, 1, 2)]
        other = content(await whole(engine, chat("Hello", seed=1)))
        cases: list[Document] = [{"seed": 1}, {}]
        for more in cases:
            document = await whole(engine, chat(n=3, **more))
            assert len({choice["message"]["content"] for choice in document["choices"]}) == 3
            assert document["usage"]["completion_tokens"] == 36
    assert seeded[0] == seeded[1]
    assert len({*seeded, other}) == 3


async def test_logprobs_of_both_endpoints() -> None:
    async with started() as engine:
        document = await whole(engine, chat(logprobs=True, top_logprobs=3, temperature=0))
        entries = document["choices"][0]["logprobs"]["content"]
        assert "".join(entry["token"] for entry in entries) == content(document)
        for entry in entries:
            assert entry["logprob"] < 0
            assert len(entry["top_logprobs"]) == 3
            assert {"token": entry["token"], "logprob": entry["logprob"], "bytes": entry["bytes"]} in entry[
                "top_logprobs"
            ]
        logprobs = (await whole(engine, completion(logprobs=2)))["choices"][0]["logprobs"]
    for token, logprob, top in zip(*(logprobs[key] for key in ("tokens", "token_logprobs", "top_logprobs"))):  # noqa: B905
        assert top[token] == logprob
        assert len(top) == 2


async def test_hundreds_of_streams_are_not_mixed_up() -> None:
    async with started(max_num_seqs=50, kv_blocks=700) as engine:
        expected = [content(await whole(engine, chat(f"number {n}", temperature=0))) for n in range(300)]
        tasks = [text_of(engine, chat(f"number {n}", temperature=0, stream=True)) for n in range(300)]
        assert await asyncio.gather(*tasks) == expected
        assert len(set(expected)) == 300
        stats = await engine.stats()
    assert (stats.running, stats.waiting, stats.kv_cache_usage) == (0, 0, 0)
    assert stats.generated_tokens == 600 * 12


async def test_stats_tell_what_runs_and_what_waits() -> None:
    async with started(
        time_factor=1, token_interval_s=0.005, max_num_seqs=2, kv_blocks=64, answer_tokens=500
    ) as engine:
        prompt = list(range(64))
        tasks = [asyncio.create_task(whole(engine, completion(prompt, max_tokens=64))) for _ in range(3)]
        stats = await until(lambda stats: stats.running == 2 and stats.generated_tokens > 4, engine)
        assert stats.waiting == 1
        assert stats.kv_cache_usage is not None
        assert 7 / 64 <= stats.kv_cache_usage <= 16 / 64  # the prompts share three blocks
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        stats = await engine.stats()
        assert (stats.running, stats.waiting, stats.kv_cache_usage) == (0, 0, 0)
        await whole(engine, completion(prompt, max_tokens=1))
        after = await engine.stats()
    assert after.prompt_tokens == stats.prompt_tokens + 64
    assert after.prefix_hit_rate is not None
    assert after.prefix_hit_rate > 0


@pytest.mark.parametrize("read", [0, 1, 5])
async def test_closing_a_stream_frees_all_at_once(read: int) -> None:
    async with started(time_factor=1, token_interval_s=0.002, answer_tokens=5000) as engine:
        stream = await opened(engine, chat(stream=True))
        for _ in range(read):
            await anext(stream)
        await stream.aclose()
        stats = await engine.stats()
        assert (stats.running, stats.waiting, stats.kv_cache_usage) == (0, 0, 0)
        await asyncio.sleep(0.01)  # in which tokens would come
        assert (await engine.stats()).generated_tokens <= stats.generated_tokens + 1  # the step that was under way


async def test_steps_take_their_time() -> None:
    async with started(time_factor=1, token_interval_s=0.01) as engine:
        began = time.monotonic()
        await asyncio.gather(*(whole(engine, chat(f"{n}")) for n in range(20)))
        assert 0.12 <= time.monotonic() - began < 2  # one after the other they take 2.4
    async with started(time_factor=0, step_s=100) as engine, asyncio.timeout(60):
        await whole(engine, chat())


async def test_prefill_costs_only_what_the_cache_has_not() -> None:
    async with started(time_factor=1, prefill_tokens_per_s=1000, step_s=0, sequence_s=0) as engine:
        times_s = []
        for _ in range(2):
            began = time.monotonic()
            await whole(engine, completion(list(range(200)), max_tokens=1))
            times_s.append(time.monotonic() - began)
    assert times_s[0] >= 0.2
    assert times_s[1] < times_s[0]


async def test_a_busy_loop_does_not_stretch_the_pace() -> None:
    async with started(time_factor=1, token_interval_s=0.004, answer_tokens=50) as engine:
        took_s: list[float] = []
        while not took_s or (took_s[-1] >= 0.3 and len(took_s) < 5):  # other work on the machine may slow one down
            began = time.monotonic()
            task = asyncio.create_task(whole(engine, chat()))
            while not task.done():
                time.sleep(0.003)  # noqa: ASYNC251  # as another task would that computes
                await asyncio.sleep(0)
            took_s.append(time.monotonic() - began)
        assert took_s[-1] < 0.3


async def test_every_answer_says_that_it_is_simulated() -> None:
    refused, invalid = chat(tools=[{"type": "function"}]), chat(temperature=3)
    async with started() as engine:
        pool = Pool(engine, "simulated")
        answers = [await pool.respond(pack(request)) for request in (chat(), invalid, refused)]
        head, *_ = [part async for part in pool.stream(pack(chat(stream=True)))]
    assert isinstance(head, dict)
    assert [answer["status"] for answer in (*answers, head)] == [200, 400, 400, 200]
    assert all(answer["headers"] == HEADER | {"x-enginehouse-engine": "simulated"} for answer in (*answers, head))


async def test_what_does_not_fit_the_context_is_refused() -> None:
    async with started(kv_blocks=4, block_size=16) as engine:
        assert engine.capabilities().context_length == 64
        with pytest.raises(ApiError, match="maximum context length is 64 tokens"):
            await engine.handle(completion(list(range(60)), max_tokens=5))
        document = await whole(engine, completion(list(range(60)), max_tokens=4))
    assert document["usage"]["total_tokens"] == 64


# Faults


async def test_an_error_at_once_has_its_status_streamed_or_not() -> None:
    async with started(faults={"error_rate": 1}) as engine:
        pool = Pool(engine, "simulated")
        answer = await pool.respond(pack(chat()))
        head, body = [part async for part in pool.stream(pack(chat(stream=True)))]
        assert (await engine.stats()).running == 0
        await engine.health()
    assert isinstance(head, dict)
    for status, headers, document in (
        (answer["status"], answer["headers"], answer["body"]),
        (head["status"], head["headers"], body),
    ):
        assert status == 500
        assert headers == HEADER | {"x-enginehouse-engine": "simulated"}
        assert isinstance(document, bytes)
        error = json.loads(document)["error"]
        assert (error["type"], error["code"]) == ("server_error", "simulated_error")


async def test_an_error_rate_is_a_share_of_prompts_and_can_be_repeated() -> None:
    async def failed(seed: int) -> list[bool]:
        async with started(faults={"error_rate": 0.5, "seed": seed}) as engine:
            answers = await asyncio.gather(
                *(engine.handle(chat(f"{n}", max_tokens=1)) for n in range(60)), return_exceptions=True
            )
        return [isinstance(answer, ApiError) for answer in answers]

    first = await failed(1)
    assert 15 < sum(first) < 45
    assert await failed(1) == first
    assert await failed(2) != first


async def test_an_error_in_mid_stream() -> None:
    async with started(faults={"error_rate": 1, "error_after_tokens": 3}) as engine:
        events = [event async for event in await opened(engine, chat(stream=True))]
        assert (await engine.stats()).running == 0
        with pytest.raises(ApiError, match=r"faults\.error_rate"):
            await engine.handle(chat())
    assert [b'"content":" ' in event or b'"content":"' in event for event in events].count(True) == 4  # role, 3 tokens
    assert json.loads(events[-1].removeprefix(b"data: "))["error"]["code"] == "engine_error"
    assert b"[DONE]" not in events[-1]


@pytest.mark.parametrize("after", [0, 2])
async def test_a_hanging_stream_delivers_nothing_more_and_closing_frees_all(after: int) -> None:
    async with started(faults={"hang_rate": 1, "hang_after_tokens": after}) as engine:
        stream = await opened(engine, chat(stream=True))
        for _ in range(after + bool(after)):  # the role's event comes with the first token
            await anext(stream)
        task = asyncio.create_task(anext(stream))
        await until(lambda stats: stats.running == 1, engine)
        done, _ = await asyncio.wait([task], timeout=0.05)
        assert not done
        assert (await engine.stats()).generated_tokens == after
        await engine.health()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        stats = await engine.stats()
        assert (stats.running, stats.waiting, stats.kv_cache_usage) == (0, 0, 0)


async def test_an_answer_that_hangs_holds_up_no_other() -> None:
    async with started(faults={"hang_rate": 0.5}) as engine:
        tasks = [asyncio.create_task(whole(engine, chat(f"{n}"))) for n in range(40)]
        await until(lambda stats: 5 < stats.running < 35 and sum(t.done() for t in tasks) == 40 - stats.running, engine)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_dead_engine_stays_dead() -> None:
    async with started(faults={"die_after_tokens": 5}) as engine:
        running, other = await opened(engine, chat(stream=True)), await opened(engine, chat("other", stream=True))
        events: list[bytes] = []

        async def read(stream: AsyncIterator[bytes]) -> None:
            with pytest.raises(EngineDeadError, match="die_after_tokens"):
                async for part in stream:
                    events.append(part)

        await asyncio.gather(read(running), read(other))
        assert sum(b'"delta":{"content":"' in event for event in events) == 5
        assert not any(b"[DONE]" in event for event in events)
        for call in (engine.health, engine.stats, lambda: engine.handle(chat())):
            with pytest.raises(EngineDeadError, match="die_after_tokens"):
                await call()
        answer = await Pool(engine, "simulated").respond(pack(chat()))
        assert answer["status"] == 503


async def test_a_whole_answer_that_outlives_its_engine_is_the_engine_s_death() -> None:
    async with started(faults={"die_after_tokens": 3}) as engine:
        with pytest.raises(EngineDeadError):
            await engine.handle(chat())


async def test_an_engine_dies_after_its_last_token_is_delivered() -> None:
    async with started(faults={"die_after_tokens": 12}) as engine:
        assert len(content(await whole(engine, chat())).split()) == 11
        with pytest.raises(EngineDeadError):
            await engine.health()


async def test_a_failure_inside_is_a_death_and_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    async with started() as engine, asyncio.timeout(60):

        def step() -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(engine._scheduler, "step", step)
        with pytest.raises(EngineDeadError, match="a bug"):
            await engine.handle(chat())


async def test_health_fails_after_a_while_and_answers_go_on() -> None:
    async with started(faults={"health_fails_after_s": 0.05}) as engine:
        await engine.health()
        await asyncio.sleep(0.06)  # until its health is to fail
        with pytest.raises(EngineDeadError, match="health_fails_after_s"):
            await engine.health()
        await whole(engine, chat())


async def test_a_slow_start() -> None:
    began = time.monotonic()
    async with started(faults={"start_s": 0.1}):
        assert time.monotonic() - began >= 0.1


async def test_a_start_that_fails_and_stopping_it_twice() -> None:
    args = SimulatedArgs.model_validate({"faults": {"fail_start": True}})
    engine = SimulatedEngine(PoolModel("m", "m"), args)
    with pytest.raises(ValueError, match=r"faults\.fail_start"):
        await engine.start()
    await engine.stop()
    await engine.stop()


async def test_stopping_ends_what_runs() -> None:
    async with started(faults={"hang_rate": 1}) as engine:
        task = asyncio.create_task(engine.handle(chat()))
        await until(lambda stats: stats.running == 1, engine)
        await engine.stop()
        with pytest.raises(EngineDeadError, match="stopped"):
            await task


# Its arguments


@pytest.mark.parametrize(
    "args",
    [{"answer_tokens": 0}, {"max_model_len": 15}, {"time_factor": -1}, {"prefill_tokens_per_s": 0}]
    + [{"kv_blocks": 0}, {"block_size": 0}, {"max_num_seqs": 0}, {"step_s": float("inf")}, {"speed": 1}]
    + [{"faults": {"error_rate": 1.1}}, {"faults": {"die_after_tokens": 0}}, {"faults": {"die": 1}}]
    + [{"max_num_seqs": 32, "max_num_batched_tokens": 31}],
    ids=str,
)
def test_bad_arguments_are_refused(args: Document) -> None:
    with pytest.raises(ValidationError):
        SimulatedArgs.model_validate(args)


def test_arguments_are_the_timing_model_s() -> None:
    timing = SimulatedArgs.model_validate({"step_s": 0.5, "kv_blocks": 7, "sequence_s": 0.25}).timing()
    assert (timing.step_s, timing.kv_blocks, timing.duration_s(0, 2, 0)) == (0.5, 7, 1.0)
    paced = SimulatedArgs.model_validate({"token_interval_s": 0.03, "cached_token_s": 9}).timing()
    assert paced.duration_s(10**6, 50, 10**6) == 0.03


def test_the_registry_has_it_and_asks_for_no_files() -> None:
    assert registry.args_type("simulated") is SimulatedArgs
    assert isinstance(
        registry.create("simulated", PoolModel("m", "m"), SimulatedArgs.model_validate({})), SimulatedEngine
    )
    assert not registry.ENGINES["simulated"].has_files


def test_what_it_can_honour_before_it_has_started() -> None:
    can = SimulatedEngine(PoolModel("m", "m"), SimulatedArgs.model_validate({"max_model_len": 100})).capabilities()
    assert can.endpoints[:2] == ("chat/completions", "completions")
    assert (can.context_length, can.logprobs, can.n) == (100, True, True)
    assert (can.tools, can.json_schema, can.lora) == ((), False, False)

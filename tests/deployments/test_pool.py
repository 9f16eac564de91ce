import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import ValidationError

from deployments.config import PoolConfig
from deployments.engine import Capabilities, Engine, EngineDeadError, EngineRequest, EngineResponse, EngineStats
from deployments.errors import ApiError, unavailable
from deployments.pool import ENGINE_RESTART_S, LAST_WORDS_S, Pool, PoolReplica, build
from deployments.wire import Head, WireRequest

pytestmark = pytest.mark.usefixtures("virtual_time")

REQUEST: WireRequest = {"endpoint": "chat/completions", "body": b"{}", "request_id": "id1", "adapter": None}
CAN = Capabilities(endpoints=("chat/completions",), context_length=99, n=True)
SECRET = "/secret/path"


@dataclass
class FakeEngine(Engine):
    """Answers with bytes, or with a stream of `chunks`; `failure` comes instead of the answer, or after the chunks."""

    answer: bytes | None = None
    chunks: tuple[bytes, ...] = ()
    failure: Exception | None = None
    fails_at_once: bool = False
    sickness: Exception | None = None  # what its health is, where that isn't its failure
    requests: list[EngineRequest] = field(default_factory=list)
    streaming: bool = False
    can: Capabilities = CAN

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def handle(self, request: EngineRequest) -> EngineResponse:
        self.requests.append(request)
        if self.fails_at_once and self.failure is not None:
            raise self.failure
        if self.answer is not None:
            return EngineResponse(self.answer, headers={"x-own": "1"})
        return EngineResponse(self._stream(), media_type="text/event-stream")

    async def _stream(self) -> AsyncGenerator[bytes]:
        self.streaming = True
        try:
            for chunk in self.chunks:
                yield chunk
            if self.failure is not None:
                raise self.failure
        finally:
            self.streaming = False

    async def health(self) -> None:
        if (found := self.sickness or self.failure) is not None:
            raise found

    async def stats(self) -> EngineStats:
        return EngineStats(running=2, waiting=1)

    def capabilities(self) -> Capabilities:
        return self.can


def pool(engine: Engine) -> Pool:
    return Pool(engine, "fake")


async def all_of(engine: FakeEngine) -> tuple[Head, list[bytes]]:
    head, *chunks = [part async for part in pool(engine).stream(REQUEST)]
    assert isinstance(head, dict)
    assert not engine.streaming
    return head, [chunk for chunk in chunks if isinstance(chunk, bytes)]


def error_of(body: bytes) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


async def test_a_whole_answer() -> None:
    engine = FakeEngine(answer=b'{"a": 1}')
    assert await pool(engine).respond(REQUEST) == {
        "status": 200,
        "media_type": "application/json",
        "headers": {"x-own": "1", "x-enginehouse-engine": "fake"},
        "body": b'{"a": 1}',
    }
    assert engine.requests == [EngineRequest("chat/completions", b"{}", "id1")]


async def test_a_stream_s_head_comes_first() -> None:
    head, chunks = await all_of(FakeEngine(chunks=(b"one", b"two", b"three")))
    assert head == {"status": 200, "media_type": "text/event-stream", "headers": {"x-enginehouse-engine": "fake"}}
    assert chunks == [b"one", b"two", b"three"]


async def test_a_stream_is_not_collected() -> None:
    engine = FakeEngine(chunks=(b"one",), failure=RuntimeError("never reached"))
    async with aclosing(pool(engine).stream(REQUEST)) as stream:
        assert isinstance(await anext(stream), dict)
        assert await anext(stream) == b"one"
        assert engine.streaming


async def test_a_whole_answer_to_a_stream_s_request() -> None:
    head, chunks = await all_of(FakeEngine(answer=b"{}"))
    assert (head["status"], head["media_type"], head["headers"]["x-own"]) == (200, "application/json", "1")
    assert chunks == [b"{}"]


async def test_an_empty_stream_still_has_a_head() -> None:
    head, chunks = await all_of(FakeEngine())
    assert head["status"] == 200
    assert b"".join(chunks) == b""


async def test_a_stream_to_a_whole_answer_s_request_is_the_engine_s_fault() -> None:
    with pytest.raises(TypeError, match="chat/completions"):
        await pool(FakeEngine(chunks=(b"one",))).respond(REQUEST)


API_ERROR = ApiError(422, "No.", param="n", code="bad", headers={"x-why": "n"})
DEAD = EngineDeadError(f"died at {SECRET}")
CRASH = ValueError(f"at {SECRET}")
RESTART = str(ENGINE_RESTART_S)
FAILURES = pytest.mark.parametrize(
    ("failure", "status", "headers", "code"),
    [
        pytest.param(API_ERROR, 422, {"x-why": "n"}, "bad", id="refused"),
        pytest.param(unavailable("Full.", "full", 2), 503, {"retry-after": "2"}, "full", id="full"),
        pytest.param(DEAD, 503, {"retry-after": RESTART}, "engine_dead", id="dead"),
        pytest.param(CRASH, 500, {}, "internal_error", id="crash"),
        pytest.param(json.JSONDecodeError(SECRET, "", 0), 500, {}, "internal_error", id="crash of another type"),
    ],
)


def check_failure(head: Head, body: bytes, status: int, headers: dict[str, str], code: str) -> None:
    assert (head["status"], head["media_type"]) == (status, "application/json")
    assert head["headers"] == headers | {"x-enginehouse-engine": "fake"}
    error = error_of(body)
    assert error["code"] == code
    assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    assert SECRET not in body.decode()


@FAILURES
async def test_a_failure_is_an_envelope(failure: Exception, status: int, headers: dict[str, str], code: str) -> None:
    answer = await pool(FakeEngine(failure=failure, fails_at_once=True)).respond(REQUEST)
    check_failure(answer, answer["body"], status, headers, code)


@FAILURES
async def test_a_failure_before_a_stream(failure: Exception, status: int, headers: dict[str, str], code: str) -> None:
    head, chunks = await all_of(FakeEngine(failure=failure, fails_at_once=True))
    check_failure(head, b"".join(chunks), status, headers, code)


@FAILURES
async def test_a_failure_at_the_first_chunk(
    failure: Exception, status: int, headers: dict[str, str], code: str
) -> None:
    head, chunks = await all_of(FakeEngine(failure=failure))
    check_failure(head, b"".join(chunks), status, headers, code)


async def test_a_client_s_error_keeps_its_field() -> None:
    answer = await pool(FakeEngine(failure=API_ERROR, fails_at_once=True)).respond(REQUEST)
    expected = {"message": "No.", "type": "invalid_request_error", "param": "n", "code": "bad"}
    assert error_of(answer["body"]) == expected


@pytest.mark.parametrize("failure", [API_ERROR, DEAD, CRASH], ids=["refused", "dead", "crash"])
async def test_a_failure_in_mid_stream_comes_through(failure: Exception) -> None:
    engine = FakeEngine(chunks=(b"one",), failure=failure)
    seen: list[Head | bytes] = []
    with pytest.raises(type(failure)) as caught:
        async for part in pool(engine).stream(REQUEST):
            seen.append(part)
    assert caught.value is failure
    assert seen[1:] == [b"one"]
    assert not engine.streaming


async def test_only_a_crash_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.pool.logger", logging.getLogger("pool"))  # Serve rules its own as it likes
    for failure, traceback in ((API_ERROR, None), (DEAD, False), (CRASH, True)):
        caplog.clear()
        await pool(FakeEngine(failure=failure, fails_at_once=True)).respond(REQUEST)
        assert [bool(record.exc_info) for record in caplog.records] == ([] if traceback is None else [traceback])


@pytest.mark.parametrize("parts", [1, 2, 3])
async def test_closing_the_stream_closes_the_engine_s(parts: int) -> None:
    engine = FakeEngine(chunks=(b"one", b"two", b"three"))
    async with aclosing(pool(engine).stream(REQUEST)) as stream:
        for _ in range(parts):
            await anext(stream)
        assert engine.streaming
    assert not engine.streaming


async def test_stats_are_a_plain_document() -> None:
    assert await pool(FakeEngine()).stats() == {
        "running": 2,
        "waiting": 1,
        "kv_cache_usage": None,
        "prefix_hit_rate": None,
        "prompt_tokens": 0,
        "generated_tokens": 0,
    }


async def test_it_says_what_it_is() -> None:
    description = await pool(FakeEngine()).describe()
    assert description["engine"] == "fake"
    assert description["capabilities"]["context_length"] == 99


async def test_what_is_for_the_router_is_not_the_engine_s() -> None:
    engine = FakeEngine(answer=b"{}")
    await pool(engine).respond({**REQUEST, "prefix": [1, 2]})
    assert engine.requests == [EngineRequest("chat/completions", b"{}", "id1")]


async def test_it_says_whether_it_wants_to_know_the_blocks_of_prompts() -> None:
    assert (await pool(FakeEngine()).describe())["replica_choice"] == "least_outstanding"
    assert (await Pool(FakeEngine(), "fake", replica_choice="prefix").describe())["replica_choice"] == "prefix"


async def test_what_the_engine_cannot_honour_never_reaches_it() -> None:
    engine = FakeEngine(answer=b"{}")
    answer = await pool(engine).respond({**REQUEST, "body": b'{"tools": [{"type": "function"}]}'})
    assert answer["status"] == 400
    assert error_of(answer["body"])["param"] == "tools"
    assert "fake engine" in error_of(answer["body"])["message"]
    assert not engine.requests


async def test_the_pool_is_as_healthy_as_its_engine() -> None:
    await pool(FakeEngine()).check_health()
    with pytest.raises(EngineDeadError):
        await pool(FakeEngine(failure=DEAD)).check_health()


class Replica(PoolReplica):
    """A replica without Serve."""

    def __init__(self, engine: Engine) -> None:
        Pool.__init__(self, engine, "fake")

    def __del__(self) -> None:  # type: ignore[override]
        """Nothing was started."""


async def health(replica: Replica) -> None:
    with pytest.raises(EngineDeadError):
        await replica.check_health()
    await asyncio.Event().wait()


async def stream(replica: Replica) -> None:
    with pytest.raises((EngineDeadError, ApiError)):
        [part async for part in replica.stream(REQUEST)]
    await asyncio.Event().wait()


async def whole(replica: Replica) -> None:
    await replica.respond(REQUEST)


@pytest.mark.parametrize(
    ("ask", "engine"),
    [
        (health, FakeEngine(failure=DEAD)),
        (stream, FakeEngine(failure=DEAD, chunks=(b"one",))),
        (stream, FakeEngine(failure=DEAD)),
        (stream, FakeEngine(failure=API_ERROR, chunks=(b"one",), sickness=DEAD)),
        (whole, FakeEngine(failure=DEAD, fails_at_once=True)),
        (whole, FakeEngine(failure=ApiError(500, "Its own words."), fails_at_once=True, sickness=DEAD)),
        (stream, FakeEngine(failure=ApiError(500, "Its own words."), sickness=DEAD)),
    ],
    ids=[
        "health",
        "mid-stream",
        "before a stream",
        "in other words",
        "whole",
        "whole, in other words",
        "before a stream, in other words",
    ],
)
async def test_a_replica_ends_with_its_engine(
    ask: Callable[[Replica], Coroutine[Any, Any, None]], engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was begun is told first, what wasn't is lost with it."""
    ended: list[int] = []
    monkeypatch.setattr("os._exit", ended.append)
    replica = Replica(engine)
    asked = [asyncio.create_task(ask(replica)) for _ in range(3)]
    await asyncio.sleep(LAST_WORDS_S / 2)
    assert not ended
    await asyncio.sleep(LAST_WORDS_S)
    assert ended == [1]
    assert not any(each.done() for each in asked)
    for each in asked:
        each.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


async def test_a_replica_outlives_a_request_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os._exit", pytest.fail)
    replica = Replica(FakeEngine(failure=CRASH, fails_at_once=True))
    assert (await replica.respond(REQUEST))["status"] == 500
    with pytest.raises(ValueError, match="at "):
        [part async for part in Replica(FakeEngine(failure=CRASH, chunks=(b"one",))).stream(REQUEST)]
    await asyncio.sleep(1.2 * LAST_WORDS_S)


def actor_options(config: PoolConfig) -> dict[str, Any]:
    options = build(config)._bound_deployment.ray_actor_options
    assert options is not None
    return options


def test_an_engine_of_this_environment_starts_with_this_python() -> None:
    options = actor_options(PoolConfig(engine="transformers", model="m"))
    assert "py_executable" not in options.get("runtime_env", {})
    assert options["num_cpus"] == 1


def test_an_engine_with_an_environment_of_its_own_starts_with_its_launcher() -> None:
    options = actor_options(PoolConfig(engine="vllm", model="m"))
    assert options["runtime_env"] == {"py_executable": "engine-python vllm"}
    assert options["num_cpus"] == 1


def test_a_replica_gets_the_pool_s_whole_config() -> None:
    config = PoolConfig(engine="transformers", model="org/m", revision="r", engine_args={"max_num_seqs": 2})
    (argument,) = build(config)._bound_deployment.init_args
    assert PoolConfig.model_validate(argument) == config


@pytest.mark.parametrize(
    "engine_args", [{"max_num_seqs": 0}, {"block_sise": 16}, {"dtype": "int4"}, {"threads": "many"}], ids=str
)
def test_bad_engine_args_are_refused_before_a_replica_starts(engine_args: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        build(PoolConfig(engine="transformers", model="m", engine_args=engine_args))
    (error,) = caught.value.errors()
    assert error["loc"] == tuple(engine_args)


def test_the_router_is_of_the_pool_s_choice() -> None:
    plain = PoolConfig(engine="simulated", model="m")
    prefix = PoolConfig.model_validate({**plain.model_dump(), "replica_choice": "prefix", "prefix": {"memory": 7}})
    for config, settings in (
        (plain, {"replica_choice": "least_outstanding"}),
        (prefix, {"replica_choice": "prefix", "min_match": 0.1, "max_imbalance": 1.25, "memory": 7}),
    ):
        found = build(config)._bound_deployment._deployment_config.request_router_config
        assert found.is_default_request_router()  # as far as Serve sees: under HAProxy it refuses any other
        assert found.request_router_kwargs == settings


@pytest.mark.parametrize(
    "settings",
    [
        {"prefix": {"memory": 7}},
        {"replica_choice": "prefix", "prefix": {"memory": 0}},
        {"replica_choice": "prefix", "prefix": {"max_imbalance": 0.9}},
        {"replica_choice": "prefix", "prefix": {"min_match": 1.1}},
        {"replica_choice": "prefix", "prefix": {"beta": 1}},
        {"replica_choice": "random"},
    ],
    ids=str,
)
def test_settings_of_the_choice_that_mean_nothing_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        PoolConfig.model_validate({"engine": "simulated", "model": "m", **settings})

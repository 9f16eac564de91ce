import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast

import pytest
import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from deployments import registry
from deployments.config import PoolConfig
from deployments.engine import Capabilities, EngineDeadError, EngineRequest, EngineResponse, EngineStats, PoolModel
from deployments.errors import ApiError
from deployments.openai import OpenAIArgs, OpenAIEngine
from deployments.pool import Pool
from deployments.wire import WireRequest
from tests.deployments.remote_server import MODEL, SSE, Answer, Peer, Received, Remote, ok, remotes
from tests.waiting import until

KEY = "sk-very-secret-0123456789"
WHOLE = b'{"model":"served","messages":[{"role":"user","content":"\xc3\xa9 \\"model\\""}],"n":  1.0e0}'
STREAM = b'{"model":"served","stream":true,"messages":[]}'
DONE = b"data: [DONE]\n\n"


@asynccontextmanager
async def engine(*servers: Remote, **args: Any) -> AsyncGenerator[OpenAIEngine]:
    # Often looked at, and with all the time that a busy machine takes.
    fast: dict[str, Any] = {"health_interval_s": 0.05, "start_timeout_s": 60, "connect_timeout_s": 60}
    fast["urls"] = [server.url for server in servers]
    created = OpenAIEngine(PoolModel(MODEL, "served"), OpenAIArgs.model_validate(fast | args))
    try:
        await created.start()
        yield created
    finally:
        await created.stop()


def request(body: bytes = WHOLE, endpoint: Any = "chat/completions", request_id: str = "id1") -> EngineRequest:
    return EngineRequest(endpoint, body, request_id)


def wire(body: bytes) -> WireRequest:
    return {"endpoint": "chat/completions", "body": body, "request_id": "id1", "adapter": None}


def saying(text: bytes, status: int = 200, media_type: str = "application/json") -> Answer:
    async def answer(_: Received, peer: Peer) -> None:
        await peer.answer(text, status, media_type)

    return answer


def streaming(*chunks: bytes) -> Answer:
    async def answer(_: Received, peer: Peer) -> None:
        await peer.stream(*chunks)

    return answer


async def streamed(response: EngineResponse) -> bytes:
    assert response.media_type == SSE
    async with aclosing(cast("AsyncGenerator[bytes]", response.body)) as body:
        return b"".join([chunk async for chunk in body])


async def refused(served: OpenAIEngine, asked: EngineRequest) -> ApiError:
    with pytest.raises(ApiError) as caught:
        response = await served.handle(asked)
        if not isinstance(response.body, bytes):
            await streamed(response)
    return caught.value


async def test_a_whole_answer_passes_but_for_the_name() -> None:
    said = b'{ "id":"1","model" : "%s", "text":"\\"model\\":\\"%s\\" \\u00e9\xc3\xa9", "x":1.50 }\n'
    async with remotes(saying(said % (MODEL.encode(), MODEL.encode()))) as (there,), engine(there) as served:
        response = await served.handle(request())
        assert response == EngineResponse(said % (b"served", MODEL.encode()))
        (received,) = there.received
        assert received.path == "/v1/chat/completions"
        assert received.body == WHOLE.replace(b'"served"', b'"%s"' % MODEL.encode())
        assert received.headers["x-request-id"] == "id1"


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [
        ("completions", "/v1/completions"),
        ("responses", "/v1/responses"),
        ("messages", "/v1/messages"),
        ("embeddings", "/v1/embeddings"),
        ("score", "/v1/score"),
        ("tokenize", "/tokenize"),
        ("detokenize", "/detokenize"),
    ],
)
async def test_where_each_endpoint_is(endpoint: str, path: str) -> None:
    async with remotes(ok) as (there,), engine(there) as served:
        await served.handle(request(endpoint=endpoint))
        assert there.received[0].path == path


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a_stream_passes_but_for_the_name(size: int) -> None:
    said = b': hi\n\ndata: {"model": "%s","choices":[{"text":"\xf0\x9f\x8e\x89"}]}\r\n\r\n' % MODEL.encode() + DONE
    chunks = [said[at : at + size] for at in range(0, len(said), size)]
    async with remotes(streaming(*chunks)) as (there,), engine(there) as served:
        response = await served.handle(request(STREAM))
        assert response.status == 200
        assert await streamed(response) == said.replace(MODEL.encode(), b"served")
        assert (await served.stats()).running == 0


async def test_a_stream_is_not_collected() -> None:
    go_on = asyncio.Event()

    async def slowly(_: Received, peer: Peer) -> None:
        await peer.begin()
        await peer.chunk(b"data: 1\n\n")
        await go_on.wait()
        await peer.chunk(DONE)
        await peer.end()

    async with remotes(slowly) as (there,), engine(there) as served:
        body = cast("AsyncGenerator[bytes]", (await served.handle(request(STREAM))).body)
        assert await asyncio.wait_for(anext(body), 60) == b"data: 1\n\n"
        assert (await served.stats()).running == 1
        go_on.set()
        assert [chunk async for chunk in body] == [DONE]


@pytest.mark.parametrize("how", ["closed", "cancelled", "cancelled before an answer"])
async def test_an_abort_reaches_the_server_within_a_second(how: str) -> None:
    left = asyncio.Event()

    async def endless(_: Received, peer: Peer) -> None:
        if how != "cancelled before an answer":
            await peer.begin()
            await peer.chunk(b"data: 1\n\n")
        await peer.left()
        left.set()

    async with remotes(endless) as (there,), engine(there) as served:
        pool = Pool(served, "openai")
        if how == "closed":
            async with aclosing(pool.stream(wire(STREAM))) as stream:
                await anext(stream)
                await anext(stream)
        else:
            task = asyncio.create_task(_drain(pool))
            await until(lambda: there.received)
            await asyncio.sleep(0.05)  # until the stream has begun
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await asyncio.wait_for(left.wait(), 60)
        assert (await served.stats()).running == 0


async def _drain(pool: Pool) -> None:
    async for _ in pool.stream(wire(STREAM)):
        pass


async def test_many_streams_at_once_are_not_mixed_up() -> None:
    async def echo(received: Received, peer: Peer) -> None:
        text = json.loads(received.body)["messages"][0]
        await peer.begin()
        for number in range(5):
            half = b'data: {"model":"%s","text":"%s %d' % (MODEL.encode(), text.encode(), number)
            await peer.chunk(half)
            await asyncio.sleep(0.001)  # so that streams overlap
            await peer.chunk(b'"}\n\n')
        await peer.chunk(DONE)
        await peer.end()

    async def one(served: OpenAIEngine, number: int) -> None:
        body = b'{"model":"served","stream":true,"messages":["client %d"]}' % number
        answer = await streamed(await served.handle(request(body, request_id=f"id{number}")))
        expected = b"".join(b'data: {"model":"served","text":"client %d %d"}\n\n' % (number, at) for at in range(5))
        assert answer == expected + DONE

    async with remotes(echo, echo) as there, engine(*there) as served:
        await asyncio.gather(*(one(served, number) for number in range(200)))
        assert [len(remote.received) for remote in there] == [100, 100]
        assert (await served.stats()).running == 0


@pytest.mark.parametrize("end", ["cut", "ended"])
async def test_a_broken_stream_is_an_error_and_has_no_end_mark(end: str) -> None:
    async def breaks(_: Received, peer: Peer) -> None:
        await peer.begin()
        await peer.chunk(b'data: 1\n\ndata: {"half')
        await asyncio.sleep(0.05)  # so that what was sent comes by itself
        await peer.end() if end == "ended" else peer.cut()

    async with remotes(breaks) as (there,), engine(there) as served:
        seen: list[Any] = []
        with pytest.raises(ConnectionError, match="remote server"):
            async for part in Pool(served, "openai").stream(wire(STREAM)):
                seen.append(part)
        assert seen[1:] == [b"data: 1\n\n"]


async def test_a_stream_that_breaks_before_its_first_line_has_an_error_s_status() -> None:
    async def breaks(_: Received, peer: Peer) -> None:
        await peer.begin()
        peer.cut()

    async with remotes(breaks) as (there,), engine(there) as served:
        head, body = [part async for part in Pool(served, "openai").stream(wire(STREAM))]
        assert cast("dict[str, Any]", head)["status"] == 502
        assert json.loads(cast("bytes", body))["error"]["code"] == "upstream_error"


async def test_a_stream_that_stalls_is_given_up() -> None:
    async def stalls(_: Received, peer: Peer) -> None:
        await peer.begin()
        await peer.chunk(b"data: 1\n\n")
        await peer.left()

    async with remotes(stalls) as (there,), engine(there, read_timeout_s=0.1) as served:
        body = cast("AsyncGenerator[bytes]", (await served.handle(request(STREAM))).body)
        assert await anext(body) == b"data: 1\n\n"
        with pytest.raises(ConnectionError, match="0.1 s"):
            await anext(body)


async def test_an_error_instead_of_a_stream_is_passed_whole() -> None:
    error = b'{"error":{"message":"No.","type":"t","param":null,"code":null}}'
    async with remotes(saying(error, 422)) as (there,), engine(there) as served:
        assert await served.handle(request(STREAM)) == EngineResponse(error, 422)


async def test_a_whole_answer_where_a_stream_was_asked_for() -> None:
    async with remotes(saying(b'{"a":1}')) as (there,), engine(there) as served:
        assert await served.handle(request(STREAM)) == EngineResponse(b'{"a":1}')


async def test_a_stream_that_nobody_asked_for_is_a_bad_gateway() -> None:
    async with remotes(streaming(DONE)) as (there,), engine(there) as served:
        error = await refused(served, request())
        assert (error.status, error.code) == (502, "upstream_error")
        assert SSE in error.message


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (saying(b"<h1>It works</h1>", 200, "text/html"), 502, "'text/html', not with JSON"),
        (saying(b"<h1>Oh no</h1>", 500, "text/html"), 502, "status 500: Oh no"),
        (saying(b"", 302), 502, "status 302"),
        (saying(b'{"error":"key?"}', 401), 502, "API key"),
        (saying(b'{"detail":"Not Found"}', 404), 404, "Not Found"),
        (saying(b"x" * 2000), 502, "larger than 1024 bytes"),
        (streaming(b"x" * 2000), 502, "larger than 1024 bytes"),
    ],
)
@pytest.mark.parametrize("body", [WHOLE, STREAM], ids=["whole", "stream"])
async def test_what_goes_wrong_is_an_envelope(answer: Answer, status: int, words: str, body: bytes) -> None:
    async with remotes(answer) as (there,), engine(there, max_answer_bytes=1024) as served:
        error = await refused(served, request(body))
        assert error.status == status
        assert words in error.message
        assert (await served.stats()).running == 0


async def test_an_answer_cut_short_is_a_bad_gateway() -> None:
    async def short(_: Received, peer: Peer) -> None:
        await peer.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
        peer.cut()

    async with remotes(short) as (there,), engine(there) as served:
        error = await refused(served, request())
        assert (error.status, error.message) == (502, "The remote server broke off its answer.")


async def test_what_is_no_http_is_a_503() -> None:
    async def ssh(_: Received, peer: Peer) -> None:
        await peer.raw(b"SSH-2.0-OpenSSH\r\n")
        peer.cut()

    async with remotes(ssh) as (there,), engine(there) as served:
        assert (await refused(served, request())).status == 503


async def test_a_body_that_is_no_object_is_a_400() -> None:
    async with remotes(ok) as (there,), engine(there) as served:
        for body in (b"[]", b"", b'{"model":'):
            assert (await refused(served, request(body))).status == 400
        assert not there.received


@pytest.mark.parametrize(
    ("member", "param"),
    [
        (b'"custom_logit_processor": "gASV"', "custom_logit_processor"),
        (b'"bootstrap_host": "10.0.0.1"', "bootstrap_host"),
        (b'"boot\\u0073trap_host": "10.0.0.1", "bootstrap_host": null', "bootstrap_host"),
        (b'"vllm_xargs": {"kv_transfer_params": "x"}', "vllm_xargs.kv_transfer_params"),
        (b'"chat_template_kwargs": {"chat_template": "{{ x }}"}', "chat_template_kwargs.chat_template"),
    ],
)
async def test_what_reaches_into_the_servers_deployment_is_not_passed_on(member: bytes, param: str) -> None:
    async with remotes(ok) as (there,), engine(there) as served:
        error = await refused(served, request(WHOLE.replace(b"{", b"{" + member + b",", 1)))
        assert (error.status, error.param, error.code) == (400, param, "unsupported_parameter")
        assert there.received == []
        await served.handle(request(WHOLE.replace(b"{", b'{"priority": null, "vllm_xargs": {"a": 1},', 1)))
        assert len(there.received) == 1


async def test_servers_down_leave_the_replica_up() -> None:
    async with remotes(ok) as (there,), engine(there, unhealthy_after=1) as served:
        await there.stop()
        for _ in range(3):
            error = await refused(served, request())
            assert (error.status, error.headers) == (503, {"retry-after": "5"})
            await served.health()
        await there.start()
        await until(lambda: served._upstream.servers[0].state == "up")
        assert (await served.handle(request())).status == 200


async def test_only_a_defect_of_ours_is_ill_health(monkeypatch: pytest.MonkeyPatch) -> None:
    async with remotes(ok) as (there,), engine(there) as served:

        async def fail(_: Any) -> None:
            raise LookupError("a defect")

        monkeypatch.setattr(served._upstream, "_check", fail)
        await until(lambda: served._upstream._watchers[0].done())
        with pytest.raises(EngineDeadError, match="a defect"):
            await served.health()


async def test_the_key_is_sent_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("REMOTE_KEY", KEY)
    monkeypatch.setattr("deployments.upstream.logger", logging.getLogger("upstream"))
    caplog.set_level(logging.DEBUG)
    said: list[str] = []
    answers = [ok, saying(f"no: {KEY}".encode(), 500), saying(b'{"error":{"message":"%s"}}' % KEY.encode(), 400)]
    for answer in [*answers, saying(b'{"error":"%s"}' % KEY.encode(), 401), streaming(DONE)]:
        async with remotes(answer) as (there,), engine(there, api_key_env="REMOTE_KEY", unhealthy_after=1) as served:
            try:
                response = await served.handle(request())
                said.append(str(response))
            except ApiError as error:
                said.append(error.message)
            assert there.received[0].headers["authorization"] == f"Bearer {KEY}"
            said.append(repr(vars(served)))
            await there.stop()
            said.append((await refused(served, request())).message)
    assert len(said) == 15
    assert KEY not in "\n".join([*said, caplog.text])


async def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REMOTE_KEY", raising=False)
    async with remotes(ok) as (there,):
        with pytest.raises(ValueError, match="'REMOTE_KEY'.*is not set"):
            async with engine(there, api_key_env="REMOTE_KEY"):
                pass


@pytest.mark.parametrize(
    ("models", "length"),
    [
        ((200, {"data": [{"id": MODEL, "max_model_len": 4096}, {"id": "x", "max_model_len": 9}]}), 4096),
        ((200, {"data": [{"id": MODEL}]}), None),
        ((200, {"data": [{"id": "other", "max_model_len": 9}]}), None),
        ((200, {"data": [{"id": MODEL, "max_model_len": "many"}]}), None),
        ((200, {"data": [1]}), None),
        ((200, {"data": 1}), None),
        ((200, []), None),
        ((404, {}), None),
    ],
)
async def test_the_context_is_read_from_the_list_of_models(models: tuple[int, Any], length: int | None) -> None:
    async with remotes(ok) as (there,):
        there.models = models
        async with engine(there) as served:
            assert served.capabilities().context_length == length
        async with engine(there, context_length=512) as served:
            assert served.capabilities().context_length == 512


async def test_the_least_context_counts() -> None:
    async with remotes(ok, ok) as (first, second):
        for remote, length in ((first, 4096), (second, 2048)):
            remote.models = (200, {"data": [{"id": MODEL, "max_model_len": length}]})
        async with engine(first, second) as served:
            assert served.capabilities().context_length == 2048


def test_what_the_servers_can_is_what_the_configuration_says() -> None:
    args = OpenAIArgs(urls=("http://a/v1",))
    assert OpenAIEngine(PoolModel(MODEL, "served"), args).capabilities() == Capabilities(
        endpoints=("chat/completions", "completions"),
        tools=("auto", "forced"),
        json_schema=True,
        logprobs=True,
        n=True,
    )
    said = {"endpoints": ["embeddings"], "tools": [], "json_schema": False, "logprobs": False, "n": False}
    args = OpenAIArgs.model_validate({"urls": ["http://a/v1"], "parts": ["text", "image"], "context_length": 9} | said)
    assert OpenAIEngine(PoolModel(MODEL, "served"), args).capabilities() == Capabilities(
        endpoints=("embeddings",), context_length=9, parts=("text", "image")
    )


@pytest.mark.parametrize(
    "args", [{"metrics": "vlm"}, {"endpoints": []}, {"endpoints": ["chat"]}, {"url": "x"}], ids=str
)
def test_bad_args_are_refused(args: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        OpenAIArgs.model_validate({"urls": ["http://a/v1"]} | args)


METRICS = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 2\nvllm:prompt_tokens_total 10\n"


async def test_the_servers_own_metrics_are_the_stats() -> None:
    async with remotes(ok, ok) as (first, second):
        first.metrics = second.metrics = METRICS
        async with engine(first, second, metrics="vllm") as served:
            assert await served.stats() == EngineStats(6, 4, prompt_tokens=20)


@pytest.mark.parametrize("metrics", [None, b"<html>", b"tgi_queue_size 1\n", b"\xff\xfe"])
async def test_without_metrics_the_stats_are_our_own(
    metrics: bytes | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.upstream_stats.logger", logging.getLogger("openai-engine"))
    async with remotes(ok) as (there,):
        there.metrics = metrics
        async with engine(there, metrics="vllm") as served:
            for _ in range(2):
                assert await served.stats() == EngineStats(0, 0)
            assert len([message for message in caplog.messages if "gives no metrics" in message]) == 1


async def test_metrics_that_hang_hold_nothing_up_for_long() -> None:
    async with remotes(ok) as (there,), engine(there, metrics="vllm", connect_timeout_s=0.2) as served:
        there.silent = True
        began = time.monotonic()
        assert await served.stats() == EngineStats(0, 0)
        assert time.monotonic() - began < 2


def test_a_pool_of_it() -> None:
    config = PoolConfig(engine="openai", model="org/remote", engine_args={"urls": ["http://127.0.0.1:9/v1"]})
    assert isinstance(registry.create("openai", config.pool_model, config.typed_engine_args()), OpenAIEngine)
    assert not registry.ENGINES["openai"].has_files
    assert config.pool_model.served_name == "remote"
    with pytest.raises(ValidationError):
        PoolConfig(engine="openai", model="org/remote").typed_engine_args()


async def test_with_the_server_that_engines_use() -> None:
    """Uvicorn and Starlette, as under vLLM's, SGLang's and TensorRT-LLM's own servers."""
    gone = asyncio.Event()

    async def endless() -> AsyncGenerator[bytes]:
        try:
            while True:
                yield b'data: {"model":"%s"}\n\n' % MODEL.encode()
                await asyncio.sleep(0.01)  # the pace of a model
        finally:
            gone.set()

    async def chat(received: Request) -> Response:
        if json.loads(await received.body()).get("stream"):
            return StreamingResponse(endless(), media_type=SSE)
        return JSONResponse({"model": MODEL, "path": received.url.path})

    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"]), Route("/health", _healthy)])
    async with uvicorn_at(app) as url:
        args = OpenAIArgs(urls=(f"{url}/v1",))
        served = OpenAIEngine(PoolModel(MODEL, "served"), args)
        await served.start()
        for _ in range(5):
            answer = await served.handle(request())
            assert json.loads(cast("bytes", answer.body)) == {"model": "served", "path": "/v1/chat/completions"}
        async with aclosing(cast("AsyncGenerator[bytes]", (await served.handle(request(STREAM))).body)) as stream:
            assert (await anext(stream)).startswith(b'data: {"model":"served"}\n\n')
        await asyncio.wait_for(gone.wait(), 60)
        await served.stop()


async def _healthy(_: Request) -> Response:
    return Response()


@asynccontextmanager
async def uvicorn_at(app: Starlette) -> AsyncGenerator[str]:
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", ws="none"))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving

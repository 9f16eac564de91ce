"""The ingress's endpoints over pools that are stand-ins; Serve and Ray aren't started."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, MutableMapping
from typing import Any

import httpx
import pytest
from ray.exceptions import RayActorError
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from app.config import IngressConfig
from app.endpoints import ROUTES
from app.gateway import Gateway
from app.ingress import Door
from app.pools import PoolDirectory, PoolState
from app.routing.decide import PoolView
from deployments.engine import ENDPOINTS
from deployments.plane.hub import Hub
from deployments.replica_choice.prefix import prompt_blocks
from deployments.wire import Head, WireRequest, WireResponse

HEAD: Head = {"status": 200, "media_type": "text/event-stream", "headers": {"x-enginehouse-engine": "fake"}}
WHOLE: WireResponse = {
    "status": 200,
    "media_type": "application/json",
    "headers": {"x-enginehouse-engine": "fake"},
    "body": b'{"id": "1"}',
}
RUNNING = PoolState(True, "running")
UPDATING = PoolState(False, "updating")
CONFIG = IngressConfig.model_validate(
    {"models": {"m": {"pools": ["a", "b"]}, "org/big": {"pools": ["b"]}}, "max_body_bytes": 1024, "retry_after_s": 7}
)
GENERATE = [path for route in ROUTES for path in route.paths]
ENDPOINT = {path: route.endpoint for route in ROUTES for path in route.paths}


class FakeCall:
    """What a handle's call gives: awaited, or iterated. Items are given in turn, exceptions raised, events awaited."""

    def __init__(self, items: Iterator[Any], waits: asyncio.Event) -> None:
        self._items = items
        self._waits = waits
        self.cancelled = False

    def __await__(self) -> Generator[Any, None, Any]:
        return anext(self).__await__()

    def __aiter__(self) -> "FakeCall":
        return self

    async def __anext__(self) -> Any:
        for item in self._items:
            if isinstance(item, BaseException):
                raise item
            if not isinstance(item, asyncio.Event):
                return item
            self._waits.set()
            await item.wait()
        raise StopAsyncIteration

    def cancel(self) -> None:
        self.cancelled = True


class FakeMethod:
    def __init__(self, name: str, handle: "FakeHandle") -> None:
        self._name = name
        self._handle = handle

    def remote(self, wire: WireRequest) -> FakeCall:
        self._handle.asked.append((self._name, wire))
        call = FakeCall(iter(self._handle.items), self._handle.waits)
        self._handle.calls.append(call)
        return call


class FakeHandle:
    """A pool, which answers each request with `items`."""

    def __init__(self, *items: Any) -> None:
        self.items: tuple[Any, ...] = items
        self.asked: list[tuple[str, WireRequest]] = []
        self.calls: list[FakeCall] = []
        self.waits = asyncio.Event()  # set once a call waits for an event
        self.respond = FakeMethod("respond", self)

    def options(self, *, stream: bool) -> "FakeHandle":
        assert stream
        self.stream = FakeMethod("stream", self)
        return self


class FakePools(PoolDirectory):
    def __init__(self) -> None:
        super().__init__()
        self.states = {"a": RUNNING, "b": RUNNING}
        self.by_prefix = set[str]()
        self.engines: dict[str, str | None] = {"a": "toy", "b": "toy"}
        self.handles = {"a": FakeHandle(WHOLE), "b": FakeHandle(WHOLE)}

    def state(self, pool: str) -> PoolState:
        return self.states.get(pool) or super().state(pool)

    def view(self, pool: str) -> PoolView:
        state = self.state(pool)
        return PoolView(pool, state.ready, state.reason, self.engines.get(pool))

    def document(self, pool: str) -> dict[str, Any]:
        return {"pool": pool, "engine": self.engines[pool]}

    def chooses_by_prefix(self, pool: str) -> bool:
        return pool in self.by_prefix

    def handle(self, pool: str) -> DeploymentHandle[Any]:
        handle: Any = self.handles[pool]
        return handle  # type: ignore[no-any-return]


@pytest.fixture
def pools() -> FakePools:
    return FakePools()


@pytest.fixture
def gateway(pools: FakePools) -> Gateway:
    gateway = Gateway(pools)
    gateway.config = CONFIG
    return gateway


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error, which is in OpenAI's envelope and nothing else."""
    assert response.headers["content-type"] == "application/json"
    document = response.json()
    assert list(document) == ["error"]
    error: dict[str, Any] = document["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


# Whole answers


@pytest.mark.parametrize("path", GENERATE)
async def test_a_request_goes_to_a_pool_and_its_answer_back(
    client: httpx.AsyncClient, pools: FakePools, path: str
) -> None:
    body = b'{ "model": "m",  "messages": [] }'
    response = await client.post(path, content=body)
    assert (response.status_code, response.content) == (200, WHOLE["body"])
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-enginehouse-pool"] == "a"
    assert response.headers["x-enginehouse-engine"] == "fake"
    [(method, wire)] = pools.handles["a"].asked
    assert method == "respond"
    assert (wire["endpoint"], wire["body"]) == (ENDPOINT[path], body)


async def test_a_prompt_s_blocks_are_made_only_for_pools_that_choose_by_them(
    client: httpx.AsyncClient, pools: FakePools
) -> None:
    pools.by_prefix = {"a"}
    messages = [{"role": "user", "content": "word " * 150}]
    for model in ("m", "org/big"):
        await client.post("/v1/chat/completions", json={"model": model, "messages": messages})
    [(_, by_prefix)], [(_, plain)] = (pools.handles[pool].asked for pool in ("a", "b"))
    assert by_prefix["prefix"] == prompt_blocks("chat/completions", {"messages": messages}, "a")
    assert len(by_prefix["prefix"]) == 2 and "prefix" not in plain


async def test_an_engines_error_passes_unchanged(client: httpx.AsyncClient, pools: FakePools) -> None:
    answer = {"status": 422, "media_type": "text/plain", "headers": {"retry-after": "9"}, "body": b"no"}
    pools.handles["a"].items = (answer,)
    response = await client.post(GENERATE[0], json={"model": "m"})
    assert (response.status_code, response.content) == (422, b"no")
    assert response.headers["content-type"].startswith("text/plain")
    assert response.headers["retry-after"] == "9"


async def test_each_request_has_an_id_of_its_own(client: httpx.AsyncClient, pools: FakePools) -> None:
    for _ in range(3):
        await client.post(GENERATE[0], json={"model": "m"}, headers={"x-request-id": "chosen"})
    ids = {wire["request_id"] for _, wire in pools.handles["a"].asked}
    assert len(ids) == 3 and "chosen" not in ids


async def test_the_first_pool_that_is_ready_answers(client: httpx.AsyncClient, pools: FakePools) -> None:
    pools.states["a"] = UPDATING
    response = await client.post(GENERATE[0], json={"model": "m"})
    assert response.headers["x-enginehouse-pool"] == "b"
    assert pools.handles["a"].asked == []


async def test_an_answer_says_where_the_request_went_and_why(client: httpx.AsyncClient, pools: FakePools) -> None:
    response = await client.post(GENERATE[0], json={"model": "m"}, headers={"x-request-type": "offline"})
    told = {name: value for name, value in response.headers.items() if name.startswith("x-enginehouse-")}
    assert told == {
        "x-enginehouse-pool": "a",
        "x-enginehouse-engine": "fake",
        "x-enginehouse-request-type": "offline",
        "x-enginehouse-reason": "offline: route throughput, toy (header x-request-type)",
        "x-enginehouse-attempts": "1",
        "x-enginehouse-queue-ms": "0",
    }


async def test_an_error_says_so_too(client: httpx.AsyncClient, pools: FakePools) -> None:
    pools.states = {"a": UPDATING, "b": UPDATING}
    response = await client.post(GENERATE[0], json={"model": "m"})
    assert response.status_code == 503
    assert response.headers["x-enginehouse-request-type"] == "chat"
    assert response.headers["x-enginehouse-reason"] == "chat: route everything-else (short)"


async def test_a_pool_whose_queue_is_full_leaves_the_request_to_the_next(
    client: httpx.AsyncClient, pools: FakePools
) -> None:
    pools.handles["a"].items = (BackPressureError(1, 1),)
    response = await client.post(GENERATE[0], json={"model": "m"})
    assert (response.status_code, response.headers["x-enginehouse-pool"]) == (200, "b")
    assert response.headers["x-enginehouse-attempts"] == "2"
    pools.handles["b"].items = (BackPressureError(1, 1),)
    response = await client.post(GENERATE[0], json={"model": "m"})
    assert (response.status_code, error_of(response)["code"]) == (429, "queue_full")


ONE_AT_A_TIME = {"pools": {"a": {"max_concurrent": 1, "max_queued": 0}, "b": {"max_concurrent": 1, "max_queued": 0}}}


@pytest.mark.parametrize("stream", [False, True])
async def test_over_a_limit_is_a_429_before_any_engine_is_touched(
    client: httpx.AsyncClient, gateway: Gateway, pools: FakePools, stream: bool
) -> None:
    live(gateway, admission=ONE_AT_A_TIME)
    end = asyncio.Event()
    handles = pools.handles.values()
    for handle in handles:
        handle.items = (HEAD, end, b"1") if stream else (end, WHOLE)
    body = {"model": "m", "stream": stream}
    busy = [asyncio.create_task(client.post(GENERATE[0], json=body)) for _ in handles]
    async with asyncio.timeout(60):
        await asyncio.gather(*(handle.waits.wait() for handle in handles))
    response = await client.post(GENERATE[0], json=body)
    assert (response.status_code, error_of(response)["code"]) == (429, "queue_full")
    assert int(response.headers["retry-after"]) >= 1
    assert [len(handle.asked) for handle in handles] == [1, 1]
    end.set()
    answers = await asyncio.gather(*busy)
    assert sorted(answer.headers["x-enginehouse-pool"] for answer in answers) == ["a", "b"]
    assert (await client.post(GENERATE[0], json=body)).status_code == 200


async def test_who_waited_is_told_how_long(client: httpx.AsyncClient, gateway: Gateway, pools: FakePools) -> None:
    live(gateway, admission={"pools": {"b": {"max_concurrent": 1}}})
    end = asyncio.Event()
    pools.handles["b"].items = (end, WHOLE)
    first, second = (asyncio.create_task(client.post(GENERATE[0], json={"model": "org/big"})) for _ in range(2))
    async with asyncio.timeout(60):
        await pools.handles["b"].waits.wait()
    await asyncio.sleep(0.03)  # so long the second waits
    end.set()
    waited = sorted([int((await each).headers["x-enginehouse-queue-ms"]) for each in (first, second)])
    assert waited[0] == 0 and waited[1] >= 20


async def test_a_client_that_leaves_gives_its_place_back(
    client: httpx.AsyncClient, gateway: Gateway, pools: FakePools
) -> None:
    live(gateway, admission=ONE_AT_A_TIME)
    for _ in range(3):
        await cancel_while_it_waits(client, pools, stream=True)
        pools.handles["a"].calls.clear()
        pools.handles["a"].waits.clear()
    pools.handles["a"].items = (WHOLE,)
    assert (await client.post(GENERATE[0], json={"model": "m"})).headers["x-enginehouse-pool"] == "a"


@pytest.mark.parametrize(("stream", "name"), [(True, "first_token"), (True, "total"), (False, "total")])
async def test_an_answer_that_takes_too_long(
    client: httpx.AsyncClient, gateway: Gateway, pools: FakePools, stream: bool, name: str
) -> None:
    live(gateway, admission={"timeouts": {f"{name}_s": 0.02}})
    pools.handles["a"].items = (asyncio.Event(),)
    response = await client.post(GENERATE[0], json={"model": "m", "stream": stream})
    assert (response.status_code, error_of(response)["code"]) == (504, f"{name}_timeout")
    assert pools.handles["a"].calls[0].cancelled


async def test_a_stream_that_stalls_ends_with_an_error_that_says_so(
    client: httpx.AsyncClient, gateway: Gateway, pools: FakePools
) -> None:
    live(gateway, admission={"timeouts": {"between_tokens_s": 0.02}})
    pools.handles["a"].items = (HEAD, b"data: 1\n\n", asyncio.Event())
    response = await client.post(GENERATE[0], json={"model": "m", "stream": True})
    event = json.loads(response.content.removeprefix(b"data: 1\n\ndata: "))
    assert (response.status_code, event["error"]["code"]) == (200, "between_tokens_timeout")
    assert "timeouts.between_tokens_s" in event["error"]["message"]


async def shadows_end(gateway: Gateway) -> None:
    async with asyncio.timeout(60):
        await asyncio.gather(*gateway.shadows._tasks)


def live(gateway: Gateway, **settings: Any) -> None:
    gateway.configure(IngressConfig.model_validate({**CONFIG.model_dump(), **settings}))


async def test_an_alias_is_asked_for_by_its_model_s_name(
    client: httpx.AsyncClient, gateway: Gateway, pools: FakePools
) -> None:
    live(gateway, aliases={"gpt-4": "m", "any-*": "m"})
    for name in ("gpt-4", "any-thing"):
        assert (await client.post(GENERATE[0], json={"model": name})).status_code == 200
    assert [json.loads(wire["body"]) for _, wire in pools.handles["a"].asked] == [{"model": "m"}] * 2
    listed = {model["id"]: model.get("root") for model in (await client.get("/v1/models")).json()["data"]}
    assert listed == {"m": None, "org/big": None, "gpt-4": "m"}
    assert (await client.get("/v1/models/any-thing")).json()["root"] == "m"


async def test_routes_change_live(client: httpx.AsyncClient, gateway: Gateway) -> None:
    live(gateway, routes=[{"name": "r", "pools": ["b"]}])
    assert (await client.post(GENERATE[0], json={"model": "m"})).headers["x-enginehouse-pool"] == "b"
    live(gateway)
    assert (await client.post(GENERATE[0], json={"model": "m"})).headers["x-enginehouse-pool"] == "a"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_shadow_gets_a_copy_and_nobody_waits_for_it(
    client: httpx.AsyncClient, gateway: Gateway, pools: FakePools, stream: bool
) -> None:
    live(gateway, routes=[{"name": "r", "shadow": {"pool": "b", "percent": 100}}])
    answering = asyncio.Event()
    pools.handles["a"].items = (HEAD, b"1") if stream else (WHOLE,)
    pools.handles["b"].items = (HEAD, answering, b"2") if stream else (answering, WHOLE)
    response = await client.post(GENERATE[0], json={"model": "m", "stream": stream})
    assert (response.status_code, response.headers["x-enginehouse-pool"]) == (200, "a")
    async with asyncio.timeout(60):
        await pools.handles["b"].waits.wait()
    [(method, copy)], [(_, wire)] = pools.handles["b"].asked, pools.handles["a"].asked
    assert (method, copy["body"]) == ("stream" if stream else "respond", wire["body"])
    assert copy["request_id"] != wire["request_id"]
    answering.set()
    await shadows_end(gateway)


async def test_a_shadow_that_fails_harms_nobody(client: httpx.AsyncClient, gateway: Gateway, pools: FakePools) -> None:
    live(gateway, routes=[{"name": "r", "shadow": {"pool": "b", "percent": 100}}])
    pools.handles["b"].items = (RayActorError(),)
    assert (await client.post(GENERATE[0], json={"model": "m"})).status_code == 200
    await shadows_end(gateway)


async def test_shadows_are_bounded(monkeypatch: pytest.MonkeyPatch, gateway: Gateway) -> None:
    monkeypatch.setattr("app.shadow.MOST", 2)
    forever = asyncio.Event()

    async def ask() -> None:
        await forever.wait()

    for _ in range(3):
        gateway.shadows.send("b", ask())
    assert len(gateway.shadows._tasks) == 2
    forever.set()
    await shadows_end(gateway)


async def test_a_whole_request_that_is_cancelled_cancels_its_call(client: httpx.AsyncClient, pools: FakePools) -> None:
    await cancel_while_it_waits(client, pools, stream=False)


# Streams


async def cancel_while_it_waits(client: httpx.AsyncClient, pools: FakePools, *, stream: bool) -> None:
    handle = pools.handles["a"]
    handle.items = (asyncio.Event(),)
    request = asyncio.create_task(client.post(GENERATE[0], json={"model": "m", "stream": stream}))
    async with asyncio.timeout(60):
        await handle.waits.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
    assert handle.calls[0].cancelled


@pytest.mark.parametrize("path", GENERATE)
async def test_a_stream_passes_byte_for_byte(client: httpx.AsyncClient, pools: FakePools, path: str) -> None:
    chunks = [b"data: caf\xc3", b"\xa9\n\n", b"", b"data: [DONE]\n\n"]
    pools.handles["a"].items = (HEAD, *chunks)
    response = await client.post(path, json={"model": "m", "stream": True})
    assert (response.status_code, response.content) == (200, b"".join(chunks))
    assert response.headers["content-type"].partition(";")[0] == "text/event-stream"
    assert response.headers["x-enginehouse-pool"] == "a"
    assert response.headers["x-enginehouse-engine"] == "fake"
    [(method, wire)] = pools.handles["a"].asked
    assert (method, wire["endpoint"]) == ("stream", ENDPOINT[path])
    assert not pools.handles["a"].calls[0].cancelled


async def test_without_the_token_plane_streams_come_by_the_handle(
    client: httpx.AsyncClient, gateway: Gateway, pools: FakePools
) -> None:
    gateway.caller.hub = Hub()
    gateway.config = CONFIG.model_copy(update={"token_plane": False})
    pools.handles["a"].items = (HEAD, b"1")
    response = await client.post(GENERATE[0], json={"model": "m", "stream": True})
    assert (response.status_code, response.content) == (200, b"1")
    assert [method for method, _ in pools.handles["a"].asked] == ["stream"]


async def test_a_stream_whose_head_is_an_error(client: httpx.AsyncClient, pools: FakePools) -> None:
    head: Head = {"status": 400, "media_type": "application/json", "headers": {}}
    pools.handles["a"].items = (head, b'{"error": {}}')
    response = await client.post(GENERATE[0], json={"model": "m", "stream": True})
    assert (response.status_code, response.content) == (400, b'{"error": {}}')
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize("error", [RayActorError(error_msg="secret"), ValueError("secret")])
async def test_a_stream_that_breaks_ends_with_an_error_event(
    client: httpx.AsyncClient, pools: FakePools, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    pools.handles["a"].items = (HEAD, b"data: 1\n\n", error)
    response = await client.post(GENERATE[0], json={"model": "m", "stream": True})
    first, last = response.content.removesuffix(b"\n\n").split(b"\n\n")
    assert (response.status_code, first) == (200, b"data: 1")
    assert json.loads(last.removeprefix(b"data: ")) == {
        "error": {
            "message": "The engine was lost while it answered.",
            "type": "server_error",
            "param": None,
            "code": "engine_lost",
        }
    }
    assert b"[DONE]" not in response.content and b"secret" not in response.content
    assert f"a stream broke: {error!r}" in caplog.messages


async def test_a_stream_that_is_cancelled_before_its_head(client: httpx.AsyncClient, pools: FakePools) -> None:
    await cancel_while_it_waits(client, pools, stream=True)


Message = MutableMapping[str, Any]
STREAMED = b'{"model": "m", "stream": true}'


async def talk(app: Door, gone: asyncio.Event, send: Callable[[Message], Awaitable[None]]) -> None:
    """A request for a stream, by a client that is there until `gone`."""
    messages = iter([{"type": "http.request", "body": STREAMED, "more_body": False}])

    async def receive() -> Message:
        for message in messages:
            return message
        await gone.wait()
        return {"type": "http.disconnect"}

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},  # as Serve says
        "http_version": "1.1",
        "method": "POST",
        "path": GENERATE[0],
        "query_string": b"",
        "headers": [],
    }
    async with asyncio.timeout(60):
        await app(scope, receive, send)


async def test_a_client_that_leaves_while_the_engine_is_busy(app: Door, pools: FakePools) -> None:
    pools.handles["a"].items = (HEAD, b"1", asyncio.Event(), b"2")
    gone, sent = asyncio.Event(), list[bytes]()

    async def send(message: Message) -> None:
        if body := message.get("body"):
            sent.append(body)
            gone.set()

    await talk(app, gone, send)
    assert sent == [b"1"]
    assert pools.handles["a"].calls[0].cancelled


async def test_a_client_that_leaves_without_reading(app: Door, pools: FakePools) -> None:
    pools.handles["a"].items = (HEAD, b"1", b"2")
    gone = asyncio.Event()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            gone.set()
            await asyncio.Event().wait()

    await talk(app, gone, send)
    assert pools.handles["a"].calls[0].cancelled


async def test_a_client_that_leaves_before_the_first_byte(app: Door, pools: FakePools) -> None:
    pools.handles["a"].items = (HEAD, b"1", b"2")
    gone = asyncio.Event()
    gone.set()

    async def send(message: Message) -> None:
        await asyncio.Event().wait()

    await talk(app, gone, send)
    assert pools.handles["a"].calls[0].cancelled


async def test_a_client_that_leaves_while_it_sends(
    app: Door, pools: FakePools, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody's failure: nothing is asked, and nothing logged."""
    scope = {"type": "http", "method": "POST", "path": GENERATE[0], "query_string": b"", "headers": []}
    sent: list[Message] = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    messages = iter(sent)

    async def receive() -> Message:
        return next(messages)

    async def send(message: Message) -> None:
        pass

    await app(scope, receive, send)
    assert pools.handles["a"].asked == []
    assert caplog.records == []


# Pools that don't answer


@pytest.mark.parametrize("stream", [False, True])
class TestAPoolThatGivesNoAnswer:
    async def post(self, client: httpx.AsyncClient, stream: bool) -> httpx.Response:
        return await client.post(GENERATE[0], json={"model": "m", "stream": stream})

    async def test_no_pool_is_ready(self, client: httpx.AsyncClient, pools: FakePools, stream: bool) -> None:
        pools.states = {"b": UPDATING}
        response = await self.post(client, stream)
        assert (response.status_code, response.headers["retry-after"]) == (503, "7")
        assert error_of(response) == {
            "message": "No pool of 'm' is ready: 'a' is not deployed, 'b' is updating.",
            "type": "server_error",
            "param": None,
            "code": "pool_not_ready",
        }

    async def test_its_queue_is_full(self, client: httpx.AsyncClient, pools: FakePools, stream: bool) -> None:
        for handle in pools.handles.values():
            handle.items = (BackPressureError(10, 10),)
        response = await self.post(client, stream)
        assert (response.status_code, response.headers["retry-after"]) == (429, "7")
        assert error_of(response) == {
            "message": "The pool 'b' has as many requests as it may queue.",
            "type": "rate_limit_error",
            "param": None,
            "code": "queue_full",
        }

    @pytest.mark.parametrize(
        "error", [RayActorError(error_msg="secret"), DeploymentUnavailableError(DeploymentID("secret"))]
    )
    async def test_its_replica_is_lost(
        self,
        client: httpx.AsyncClient,
        pools: FakePools,
        stream: bool,
        error: Exception,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        for handle in pools.handles.values():
            handle.items = (error,)
        response = await self.post(client, stream)
        assert (response.status_code, response.headers["retry-after"]) == (503, "7")
        assert error_of(response) == {
            "message": "The pool 'b' lost the replica that had this request.",
            "type": "server_error",
            "param": None,
            "code": "replica_lost",
        }
        assert f"pool a gave no answer: {error!r}" in caplog.messages

    async def test_something_unexpected(
        self, client: httpx.AsyncClient, pools: FakePools, stream: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        pools.handles["a"].items = (ValueError("secret"),)
        response = await self.post(client, stream)
        assert response.status_code == 500
        error = error_of(response)
        assert (error["type"], error["param"], error["code"]) == ("server_error", None, "internal_error")
        assert "secret" not in response.text
        [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert record.message == "the ingress failed"
        assert record.exc_info is not None and str(record.exc_info[1]) == "secret"


# Requests that are refused


def test_every_endpoint_has_a_path() -> None:
    assert [route.endpoint for route in ROUTES] == list(ENDPOINTS)


async def test_errors_are_anthropics_where_the_api_is(client: httpx.AsyncClient, pools: FakePools) -> None:
    response = await client.post("/v1/messages", json={"model": "x"})
    assert response.status_code == 404
    document = response.json()
    assert document["type"] == "error"
    assert document["error"]["type"] == "not_found_error"
    assert (document["error"]["param"], document["error"]["code"]) == ("model", "model_not_found")
    assert document["error"]["message"].startswith("The model 'x' does not exist.")
    pools.handles["a"].items = (HEAD, b"event: ping\ndata: {}\n\n", RayActorError())
    response = await client.post("/v1/messages", json={"model": "m", "stream": True})
    name, data = response.content.removesuffix(b"\n\n").split(b"\n\n")[-1].split(b"\n")
    assert name == b"event: error"
    error = json.loads(data.removeprefix(b"data: "))["error"]
    assert (error["type"], error["code"]) == ("api_error", "engine_lost")


@pytest.mark.parametrize("path", [path for path in GENERATE if path != "/v1/messages"])
async def test_a_model_that_is_not_there(client: httpx.AsyncClient, path: str) -> None:
    response = await client.post(path, json={"model": "x"})
    assert response.status_code == 404
    assert error_of(response) == {
        "message": "The model 'x' does not exist. There are: 'm', 'org/big'.",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b'{"model": ', None, "The request body is not JSON: EOF while parsing a value at line 1 column 10."),
        (b"", None, "The request body is not JSON: EOF while parsing a value at line 1 column 0."),
        (b'{"model": 1}', "model", "Invalid value for 'model': Input should be a valid string."),
    ],
)
async def test_a_body_that_is_not_right(
    client: httpx.AsyncClient, pools: FakePools, body: bytes, param: str | None, message: str
) -> None:
    response = await client.post(GENERATE[0], content=body)
    assert response.status_code == 400
    error = error_of(response)
    assert (error["message"], error["param"]) == (message, param)
    assert pools.handles["a"].asked == []


def padded(size: int) -> bytes:
    start, end = b'{"model": "m", "user": "', b'"}'
    return start + b"x" * (size - len(start) - len(end)) + end


async def test_the_largest_body_there_may_be(client: httpx.AsyncClient) -> None:
    assert (await client.post(GENERATE[0], content=padded(1024))).status_code == 200


async def test_a_body_that_is_too_large(client: httpx.AsyncClient, pools: FakePools) -> None:
    response = await client.post(GENERATE[0], content=padded(1025))
    assert response.status_code == 413
    assert error_of(response) == {
        "message": "The request body is larger than 1024 bytes.",
        "type": "invalid_request_error",
        "param": None,
        "code": "body_too_large",
    }
    assert pools.handles["a"].asked == []


async def test_a_body_in_chunks_is_read_no_further_than_allowed(client: httpx.AsyncClient) -> None:
    taken = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(100):
            taken += 1
            yield b"x" * 512

    response = await client.post(GENERATE[0], content=chunks())
    assert "content-length" not in response.request.headers
    assert (response.status_code, error_of(response)["code"]) == (413, "body_too_large")
    assert taken == 3


@pytest.mark.parametrize("path", [GENERATE[0], "/v1/load_lora_adapter"])
async def test_a_body_that_comes_too_slowly(client: httpx.AsyncClient, gateway: Gateway, path: str) -> None:
    live(gateway, body_timeout_s=0.05)

    async def drops() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.01)  # slowly, as the body comes

    response = await client.post(path, content=drops())
    error = error_of(response)
    assert (response.status_code, error["code"]) == (408, "body_timeout")
    assert error["message"] == "The request body wasn't whole within 0.05 s (body_timeout_s)."
    assert response.headers["connection"] == "close"


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/nope", 404, "No such endpoint: GET /nope."),
        ("POST", "/v1/images", 404, "No such endpoint: POST /v1/images."),
        ("GET", "/" + "x" * 200, 404, f"No such endpoint: GET /{'x' * 99}…."),
        ("GET", "/v1/chat/completions", 405, "GET /v1/chat/completions: Method Not Allowed."),
        ("DELETE", "/v1/models/m", 405, "DELETE /v1/models/m: Method Not Allowed."),
    ],
)
async def test_no_such_endpoint(client: httpx.AsyncClient, method: str, path: str, status: int, message: str) -> None:
    response = await client.request(method, path)
    assert response.status_code == status
    assert error_of(response) == {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    assert ("allow" in response.headers) == (status == 405)


# Models and probes


async def test_models_are_listed_with_what_their_pools_can(
    client: httpx.AsyncClient, gateway: Gateway, pools: FakePools
) -> None:
    pools.engines = {"a": "toy", "b": None}
    document = (await client.get("/v1/models")).json()
    assert document["object"] == "list"
    one, other = document["data"]
    openai = {"object": "model", "created": gateway.started, "owned_by": "enginehouse"}
    b = {"pool": "b", "engine": None}
    assert one == {"id": "m", **openai, "engines": ["toy"], "pools": [{"pool": "a", "engine": "toy"}, b]}
    assert other == {"id": "org/big", **openai, "engines": [], "pools": [b]}


@pytest.mark.parametrize("path", ["/v1/models/org/big", "/v1/models/org%2Fbig"])
async def test_a_model_by_its_id(client: httpx.AsyncClient, gateway: Gateway, path: str) -> None:
    response = await client.get(path)
    assert response.status_code == 200
    assert response.json() == gateway.model_document("org/big")


async def test_a_model_that_is_not_there_by_its_id(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/models/org/small")
    assert response.status_code == 404
    assert error_of(response)["message"] == "The model 'org/small' does not exist. There are: 'm', 'org/big'."
    assert error_of(response)["code"] == "model_not_found"


async def test_health_says_nothing_of_the_pools(client: httpx.AsyncClient, pools: FakePools) -> None:
    pools.states = {}
    response = await client.get("/health")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize(
    ("states", "ready", "reasons"),
    [
        ({}, False, {"a": "not deployed", "b": "not deployed"}),
        ({"a": UPDATING, "b": PoolState(False, "deploy_failed")}, False, {"a": "updating", "b": "deploy_failed"}),
        ({"a": UPDATING, "b": RUNNING}, True, {"a": "updating", "b": "running"}),
        ({"a": RUNNING, "b": RUNNING, "unnamed": UPDATING}, True, {"a": "running", "b": "running"}),
    ],
)
async def test_ready(
    client: httpx.AsyncClient, pools: FakePools, states: dict[str, PoolState], ready: bool, reasons: dict[str, str]
) -> None:
    pools.states = states
    response = await client.get("/ready")
    assert response.status_code == (200 if ready else 503)
    assert response.json() == {"ready": ready, "pools": reasons}
    assert response.headers.get("retry-after") == (None if ready else "7")


async def test_not_ready_without_models(client: httpx.AsyncClient, gateway: Gateway) -> None:
    gateway.config = IngressConfig()
    response = await client.get("/ready")
    assert (response.status_code, response.json()) == (503, {"ready": False, "pools": {}})


async def test_a_new_configuration_applies_at_once(client: httpx.AsyncClient, gateway: Gateway) -> None:
    gateway.config = IngressConfig.model_validate({"models": {"new": {"pools": ["b"]}}, "max_body_bytes": 2048})
    assert (await client.post(GENERATE[0], json={"model": "m"})).status_code == 404
    response = await client.post(GENERATE[0], json={"model": "new", "user": "x" * 1500})
    assert (response.status_code, response.headers["x-enginehouse-pool"]) == (200, "b")
    assert [model["id"] for model in (await client.get("/v1/models")).json()["data"]] == ["new"]
    assert list((await client.get("/ready")).json()["pools"]) == ["b"]


# Documentation


async def test_the_openapi_document(client: httpx.AsyncClient) -> None:
    response = await client.get("/openapi.json")
    assert response.status_code == 200
    document = response.json()
    for path, field in (("/v1/chat/completions", "messages"), ("/v1/completions", "prompt")):
        body = document["paths"][path]["post"]["requestBody"]
        assert body["required"] is True
        schema = body["content"]["application/json"]["schema"]
        assert {"model", "stream", "max_tokens", field} <= set(schema["properties"])
        assert {"model", field} <= set(schema["required"])
        assert "$defs" not in str(schema)
    messages = document["paths"][GENERATE[0]]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "role" in messages["properties"]["messages"]["items"]["properties"]
    for reference in references(document):
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for item in node:
            yield from references(item)


async def test_the_documentation_for_people(client: httpx.AsyncClient) -> None:
    response = await client.get("/docs")
    assert response.status_code == 200
    assert "/openapi.json" in response.text

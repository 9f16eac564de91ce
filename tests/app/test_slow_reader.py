"""A client that doesn't read its stream: what it costs ends, and it is told why. Serve and Ray aren't started."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from starlette.types import Receive

from app import ingress, patience
from app.asgi import Client
from app.gateway import Gateway
from app.ingress import Door
from app.patience import StreamWatch, TooSlowError
from tests.app.test_ingress import CONFIG, HEAD, FakePools, Message, talk
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("virtual_time")

CHUNKS = [b"data: %d\n\n" % number for number in range(1, 5)]
DONE = b"data: [DONE]\n\n"
PLACES = {"pools": {"a": {"max_concurrent": 4}}}
UNREAD_S = 0.05


class Connection:
    """As a server's: `send` waits at its start while too much is unread, and `reads` says how much that is."""

    def __init__(self, app: Door, reads: int) -> None:
        self.sent: list[Message] = []
        self.blocked = asyncio.Event()
        self._reads = reads  # messages that may be sent
        self._writable = asyncio.Event()
        self._gone = asyncio.Event()
        self.task = asyncio.create_task(talk(app, self._gone, self.send))

    async def send(self, message: Message) -> None:
        if len(self.sent) >= self._reads:
            self.blocked.set()
            await self._writable.wait()
        self.sent.append(message)

    def read_on(self) -> None:
        self._writable.set()

    def leave(self) -> None:
        self._gone.set()

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])

    @property
    def complete(self) -> bool:
        return not self.sent[-1].get("more_body", False)


Count = Counter[tuple[str, str]]


@pytest.fixture
def pools() -> FakePools:
    pools = FakePools()
    pools.handles["a"].items = (HEAD, *CHUNKS, DONE)
    return pools


@pytest.fixture
def gateway(pools: FakePools, monkeypatch: pytest.MonkeyPatch) -> Gateway:
    monkeypatch.setattr(patience, "GRACE_S", 0.3)
    gateway = Gateway(pools)
    allow(gateway, unread_s=UNREAD_S)
    return gateway


@pytest.fixture
def broken(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Count:
    """Streams that were counted as broken, by pool and code."""
    count = Count()
    monkeypatch.setattr(gateway._broken_streams, "inc", lambda tags: count.update([(tags["pool"], tags["code"])]))
    return count


def allow(gateway: Gateway, **timeouts: Any) -> None:
    admission = {**PLACES, "timeouts": {"between_tokens_s": None, **timeouts}}
    gateway.configure(CONFIG.model_validate({**CONFIG.model_dump(), "admission": admission}))


def held(gateway: Gateway) -> int:
    """Places of the pool that requests have."""
    return gateway.gate._pool("a").budget.running


async def given_up(app: Door, pools: FakePools, reads: int = 3) -> Connection:
    """A client that read so many messages, then nothing for too long."""
    connection = Connection(app, reads)
    await until(lambda: pools.handles["a"].calls and pools.handles["a"].calls[0].cancelled)
    assert connection.blocked.is_set() and not connection.task.done()
    return connection


@pytest.mark.parametrize(
    ("timeouts", "code", "name"),
    [
        ({"unread_s": UNREAD_S}, "client_too_slow", "0.05 s (timeouts.unread_s)"),
        ({"unread_s": 60, "total_s": UNREAD_S}, "total_timeout", "0.05 s (timeouts.total_s)"),
        ({"unread_s": None, "total_s": UNREAD_S}, "total_timeout", "0.05 s (timeouts.total_s)"),
    ],
)
async def test_a_client_that_reads_on_is_told_why(
    app: Door,
    gateway: Gateway,
    pools: FakePools,
    broken: Count,
    timeouts: dict[str, Any],
    code: str,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    allow(gateway, **timeouts)
    connection = await given_up(app, pools)
    assert (held(gateway), broken) == (0, {("a", code): 1})  # before it is told
    assert [record.levelno for record in caplog.records] == [logging.WARNING] and name in caplog.text
    connection.read_on()
    await connection.task
    head, _, event = connection.body.partition(CHUNKS[2])  # which was being sent
    assert head == b"".join(CHUNKS[:2])
    assert f'"code": "{code}"'.encode() in event and name.encode() in event and event.count(b"\n\n") == 1
    assert connection.complete
    assert broken.total() == 1


async def test_one_that_does_not_is_cut_off(
    app: Door, gateway: Gateway, pools: FakePools, broken: Count, caplog: pytest.LogCaptureFixture
) -> None:
    connection = await given_up(app, pools)
    await connection.task
    assert connection.body == b"".join(CHUNKS[:2]) and not connection.complete
    assert (held(gateway), broken) == (0, {("a", "client_too_slow"): 1})
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "connection is closed" in caplog.messages[1]


async def test_one_that_reads_too_little_of_the_rest_is_cut_off(app: Door, pools: FakePools) -> None:
    """What was being sent gets through, the event doesn't."""
    connection = await given_up(app, pools)
    connection._reads, connection.blocked = 4, asyncio.Event()
    connection._writable.set()
    connection._writable.clear()
    await connection.task
    assert connection.body == b"".join(CHUNKS[:3]) and not connection.complete


async def test_headers_that_are_not_read(app: Door, pools: FakePools) -> None:
    """A connection may still be full of what was asked before."""
    connection = await given_up(app, pools, reads=0)
    await connection.task
    assert connection.sent == []


@pytest.mark.parametrize("reads_on", [True, False])
async def test_an_end_that_is_not_read_keeps_nobody_out(
    app: Door, gateway: Gateway, broken: Count, reads_on: bool, caplog: pytest.LogCaptureFixture
) -> None:
    connection = Connection(app, reads=6)
    async with asyncio.timeout(60):
        await connection.blocked.wait()
    assert held(gateway) == 0
    await until(lambda: caplog.records)  # it is given up
    assert broken == {}
    if reads_on:
        connection.read_on()
    await connection.task
    assert connection.body == b"".join([*CHUNKS, DONE]) and connection.complete == reads_on
    assert broken == ({} if reads_on else {("a", "client_too_slow"): 1})


async def test_a_client_that_leaves_while_it_may_still_read(
    app: Door, gateway: Gateway, pools: FakePools, broken: Count, caplog: pytest.LogCaptureFixture
) -> None:
    connection = await given_up(app, pools)
    connection.leave()
    await connection.task
    assert not connection.complete and len(caplog.records) == 1
    assert (held(gateway), broken) == (0, {("a", "client_too_slow"): 1})


async def test_a_client_that_leaves_before_is_nobody_s_fault(
    app: Door, gateway: Gateway, pools: FakePools, broken: Count, caplog: pytest.LogCaptureFixture
) -> None:
    allow(gateway, unread_s=60)
    connection = Connection(app, reads=3)
    async with asyncio.timeout(60):
        await connection.blocked.wait()
    connection.leave()
    await connection.task
    assert pools.handles["a"].calls[0].cancelled
    assert (held(gateway), broken, caplog.records) == (0, {}, [])


async def cut_off_while(
    app: Door, pools: FakePools, monkeypatch: pytest.MonkeyPatch, order: str, other: Callable[[Connection], object]
) -> Connection:
    """A stream whose client is cut off, and before its task goes on, something else cancels that; once it has ended."""
    connection = await given_up(app, pools)
    cut_off = StreamWatch._cut_off

    def both(watch: StreamWatch, error: TooSlowError) -> None:
        cancels: list[Callable[[], object]] = [partial(cut_off, watch, error), partial(other, connection)]
        for cancel in cancels if order == "then" else reversed(cancels):
            cancel()
        assert connection.task.cancelling() == 2

    monkeypatch.setattr(StreamWatch, "_cut_off", both)
    await asyncio.wait([connection.task], timeout=5)
    assert not connection.complete
    return connection


@pytest.mark.parametrize("order", ["then", "after"])
async def test_who_else_cancels_it_sees_it(
    app: Door, pools: FakePools, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    connection = await cut_off_while(app, pools, monkeypatch, order, lambda connection: connection.task.cancel())
    assert connection.task.cancelled()


@pytest.mark.parametrize("order", ["then", "after"])
async def test_a_client_that_leaves_when_it_is_cut_off(
    app: Door, pools: FakePools, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    clients: list[Client] = []

    def client(receive: Receive) -> Client:
        clients.append(Client(receive))
        return clients[0]

    def leave(connection: Connection) -> None:
        clients[0]._gone(asyncio.get_running_loop().create_future())  # type: ignore[arg-type]

    monkeypatch.setattr(ingress, "Client", client)
    await (await cut_off_while(app, pools, monkeypatch, order, leave)).task


async def test_a_shutdown_meanwhile_is_seen(app: Door, gateway: Gateway, pools: FakePools) -> None:
    connection = await given_up(app, pools)
    connection.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connection.task
    assert held(gateway) == 0


async def test_others_are_not_affected(app: Door, gateway: Gateway, pools: FakePools, broken: Count) -> None:
    await given_up(app, pools)
    more = asyncio.Event()
    pools.handles["a"].items = (HEAD, CHUNKS[0], more, CHUNKS[1], DONE)
    other = Connection(app, reads=100)
    await asyncio.sleep(4 * UNREAD_S)  # longer than a client may leave it unread
    assert other.body == CHUNKS[0] and held(gateway) == 1
    more.set()
    await other.task
    assert other.body == CHUNKS[0] + CHUNKS[1] + DONE and other.complete
    assert broken == {("a", "client_too_slow"): 1}


async def test_never(app: Door, gateway: Gateway, pools: FakePools, broken: Count) -> None:
    allow(gateway, unread_s=None)
    connection = Connection(app, reads=3)
    await asyncio.sleep(4 * UNREAD_S)
    assert connection.blocked.is_set() and held(gateway) == 1
    connection.read_on()
    await connection.task
    assert connection.body == b"".join([*CHUNKS, DONE]) and connection.complete and broken == {}


@pytest.mark.parametrize(
    ("last", "code"), [(ValueError("gone"), "engine_lost"), (asyncio.Event(), "between_tokens_timeout")]
)
async def test_every_stream_that_breaks_is_counted(
    app: Door, gateway: Gateway, pools: FakePools, broken: Count, last: Any, code: str
) -> None:
    allow(gateway, between_tokens_s=0.02)
    pools.handles["a"].items = (HEAD, CHUNKS[0], last)
    connection = Connection(app, reads=100)
    await connection.task
    assert f'"code": "{code}"'.encode() in connection.body and connection.complete
    assert broken == {("a", code): 1}


async def test_the_event_of_an_engine_that_was_lost_is_not_waited_for_either(
    app: Door, gateway: Gateway, pools: FakePools, broken: Count
) -> None:
    pools.handles["a"].items = (HEAD, CHUNKS[0], ValueError("gone"))
    connection = Connection(app, reads=2)
    async with asyncio.timeout(60):
        await connection.blocked.wait()
        assert held(gateway) == 0
        await connection.task
    assert connection.body == CHUNKS[0] and not connection.complete
    assert broken == {("a", "engine_lost"): 1}

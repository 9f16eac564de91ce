"""The kinds of faults that take a server of their own: a real engine's, what manages the server, too much work."""

import asyncio
import json
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.overload.__main__ import measure
from benchmarks.overload.server import LIMITS
from deployments import environments, guard
from tests.conformance.witness import Witness, dashboard_of, joined
from tests.faults import control
from tests.faults.leaving import leave, token_interval_ms
from tests.faults.load import TOKENS, Clients, Tally
from tests.faults.rig import BREAKER, PACED, Rig, pool, rigged_with
from tests.faults.suite import BROKEN, FULL, NotHereError, Seen, Size, clean, row_alone
from tests.live.configs import pool_application, serve_config
from tests.live.nodes import HEAD
from tests.live.raw_http import CHAT, post
from tests.live.server import Server, serving_document
from tests.waiting import free_port, wait_until

MB = 2**20

# --- a real engine ---

ON = {"ignore_eos": True}  # vLLM's own: it goes on as long as it may
STREAMS = 4
REAL: dict[str, Any] = {
    "engine": "vllm",
    "model": "smollm2-135m-instruct",
    "served_name": "real",
    "num_cpus": 0.5,
    "gpus": 0,
    "engine_args": {"max_model_len": 4096, "max_num_seqs": 16},
}


def _real_config(port: int) -> dict[str, Any]:
    # What asks for its counts is one too; and those that come at once are queued for a moment.
    limits = {"max_ongoing_requests": STREAMS + 1, "max_queued_requests": STREAMS}
    pools = [pool_application("real", limits, REAL), pool("spare", **PACED)]
    settings = {
        "models": {"real": {"pools": ["real"]}, "backed": {"pools": ["real", "spare"]}, "spare": {"pools": ["spare"]}},
        "resilience": {"breaker": BREAKER},
    }
    return serve_config(port, settings, pools)


@row_alone("the first three, with vLLM")
async def real_engine(size: Size, seen: Seen) -> None:
    """As above: it stops within 20 ms, its death is told to each stream, and the next pool answers where it can't."""
    if not environments.environment("vllm").installed:
        raise NotHereError("vLLM's environment isn't installed; run 'enginehouse engines install vllm'")
    with tempfile.TemporaryDirectory() as folder, rigged_with(_real_config(free_port()), Path(folder)) as rig:
        await rig.until_whole()
        await Clients(rig.url, "real", STREAMS).run(40)  # a server that has just come up has much else to do
        # It stops between two steps, has two under way at a time, and in a short form a busy machine under it.
        interval_ms = seen.counts["ms a token"] = round(await token_interval_ms(rig, "real", ON), 1)
        await leave(rig, "real", size.rounds, seen, ON, 0 if size is FULL else 2 * interval_ms)
        await _real_dies(rig, seen)
        await _real_fails(rig, size, seen)


async def _real_dies(rig: Rig, seen: Seen) -> None:
    await rig.until_whole()
    [replica] = rig.server.replicas("real")
    family = [psutil.Process(pid) for pid in guard.members(replica.pid)]
    [core] = [process for process in family if "EngineCore" in " ".join(process.cmdline())]
    clients = Clients(rig.url, "real", STREAMS, tokens=3000, fields=ON)
    [before] = await rig.stats("real")
    asked = asyncio.ensure_future(clients.at_once("Hi."))
    async with asyncio.timeout(60):  # until all have begun
        while (now := (await rig.stats("real"))[0])["generated_tokens"] < before["generated_tokens"] + 20 * STREAMS:
            assert not clients.tally.all, clients.tally.counts()  # none has ended yet
            await asyncio.sleep(0.05)  # until the next look
    assert now["running"] == STREAMS
    core.kill()
    await asked
    seen.counts |= {"streams": STREAMS, "told": clients.tally.told["engine_lost"]}
    seen.must(clients.tally.told == {"engine_lost": STREAMS}, f"its death: {clients.tally.counts()}")
    gone = [replica, *family]
    await rig.until(lambda: not any(process.is_running() for process in gone), "no process of it is left", 15)
    broken = "enginehouse_streams_broken_total"
    await rig.until(lambda: rig.counted(broken, pool="real") == STREAMS, "they are counted", 30)
    await rig.until_whole()


async def _real_fails(rig: Rig, size: Size, seen: Seen) -> None:
    async def kill() -> None:
        rig.signal("real")

    tally = await Clients(rig.url, "backed", 12).run(size.requests // 4, kill)
    clean(seen, tally, BROKEN)
    seen.counts["answered by the next"] = tally.answered["spare"]
    seen.must(tally.told.total() <= STREAMS + 1, f"{tally.told.total()} were told")
    seen.must(tally.answered["real"] and tally.answered["spare"], f"answered by {dict(tally.answered)}")
    seen.must(max(tally.attempts) <= 3, f"attempts: {dict(tally.attempts)}")
    await rig.until_whole()


# --- what manages the server ---

MANAGED_REPLICAS = 2
TOKEN_S = 0.1  # so that a short answer takes 2 s
AWAY_S = 15.0  # that the head stays away; many times as long as an answer takes


def _managed_config(port: int) -> dict[str, Any]:
    engine = {"token_interval_s": TOKEN_S, "answer_tokens": 1000}
    args = {"engine": "simulated", "model": "steady", "num_cpus": 0.1, "engine_args": engine}
    steady = pool_application("steady", {"num_replicas": MANAGED_REPLICAS}, args)
    settings = {"models": {"steady": {"pools": ["steady"]}}}
    # One that asks for no CPU may be put on the head, which has none to give.
    document = serve_config(port, settings, [steady], ray_actor_options={"num_cpus": 0.1})
    return {**document, "proxy_location": "EveryNode"}


@row_alone("Serve's controller is killed")
async def controller_killed(size: Size, seen: Seen) -> None:
    """No request fails, no replica is replaced; afterwards a change comes and a killed replica is replaced."""
    document = _managed_config(free_port())
    with tempfile.TemporaryDirectory() as folder, _served(document, Path(folder)) as (server, dashboard):
        processes = _replicas(server)
        async with _asking(server, TOKENS, 6) as short, _asking(server, 5 * TOKENS, 2) as long:
            await _goes_on(short)
            await control.kill_controller(server)
            await _goes_on(short)
        await _judge(seen, short, long, server, processes)
        seen.must(await control.is_managed(server, dashboard, document, "steady"), "it isn't managed")


@contextmanager
def _served(document: dict[str, Any], folder: Path) -> Iterator[tuple[Server, str]]:
    with serving_document(document, folder) as server:
        with joined(server) as context:
            dashboard = dashboard_of(context)
        yield server, dashboard


@row_alone("Ray's head is killed and comes back (RocksDB)")
async def head_killed(size: Size, seen: Seen) -> None:
    """No request fails while it is away and after, no replica is replaced; afterwards everything is managed again."""
    await _kill_head("rocksdb", seen)


@row_alone("Ray's head is killed and comes back (Redis)")
async def head_with_redis_killed(size: Size, seen: Seen) -> None:
    """The same."""
    await _kill_head("redis", seen)


async def _kill_head(store: str, seen: Seen) -> None:
    if lack := control.missing(store):
        raise NotHereError(lack)
    with control.clustered(_managed_config(free_port()), store) as cluster:
        server, heads = cluster.server, {process.pid for process in cluster.nodes.processes(HEAD)}
        processes = _replicas(server)
        seen.must(not processes & heads, "a replica is on the head")
        async with _asking(server, TOKENS, 6) as short, _asking(server, 10 * TOKENS, 2) as long:
            await _goes_on(short)
            await control.kill_head(cluster)
            seen.must(not await asyncio.to_thread(cluster.nodes.processes, HEAD), "the head is still there")
            await asyncio.sleep(AWAY_S)  # so long it stays away
            await _goes_on(short)
            await control.restart_head(cluster)
            await _goes_on(short)
        await _judge(seen, short, long, server, processes)
        seen.must(await control.is_managed(server, cluster.dashboard, cluster.config, "steady"), "it isn't managed")


def _replicas(server: Server) -> set[int]:
    found = {process.pid for process in server.replicas("steady") + server.replicas("ingress")}
    assert len(found) == MANAGED_REPLICAS + 1
    return found


def _asking(server: Server, tokens: int, clients: int) -> AbstractAsyncContextManager[Tally]:
    return control.asking(server.url, "steady", clients, tokens)


async def _goes_on(tally: Tally) -> None:
    """Return once answers have come that were asked for now: clients are answered, not only kept waiting."""
    enough = tally.answered.total() + 12  # twice as many as there are clients
    await asyncio.to_thread(wait_until, lambda: tally.answered.total() >= enough, "new requests are answered", 30)


async def _judge(seen: Seen, short: Tally, long: Tally, server: Server, processes: set[int]) -> None:
    for tally in (short, long):
        seen.must(tally.answered.total() == tally.all > 0, f"{tally.counts()}")
    seen.counts |= {"requests": short.all + long.all, "answered": (short.answered + long.answered).total()}
    seen.must(_replicas(server) == processes, "a replica was replaced")


# --- too much work, and clients that are too slow ---

CALM_S = 15.0
NOISE_MS = 100.0  # of a busy machine, and of few requests


@row_alone("ten times what a pool can answer")
async def overload(size: Size, seen: Seen) -> None:
    """Chat keeps within 1.5 times its TTFT, and is all answered; the rest gets its 429 at once; memory is bounded."""
    calm_s = min(CALM_S, size.soak_s / 5)
    found = await asyncio.to_thread(measure, LIMITS, calm_s, 2 * calm_s, 1)
    before, during = found["phases"]["calm"]["chat"], found["phases"]["overload"]
    chat, offline, memory = during["chat"], during["offline"], found["ingress_rss_mb"]
    seen.counts |= {
        "requests": sum(kind["offered"] for kind in during.values()),
        "answered": sum(kind["answered"] for kind in during.values()),
        "got a 429": sum(kind["shed"] for kind in during.values()),
        "TTFT ms of chat before": round(before["ttft_ms_p50"]),
        "and during": round(chat["ttft_ms_p50"]),
        "ms to a 429": round(offline["shed_ms_p50"], 1),
        "MB more, ingress": round(memory["most"] - memory["calm"]),
    }
    seen.must(not any(kind["wrong"] + kind["unanswered"] for kind in during.values()), f"{during}")
    seen.must(chat["answered"] == chat["offered"] > 20, f"chat: {chat}")
    noise_ms = NOISE_MS if calm_s < CALM_S else 0
    seen.must(chat["ttft_ms_p50"] <= 1.5 * before["ttft_ms_p50"] + noise_ms, "chat waits too long")
    seen.must(during["batch"]["shed"] == 0, "batch requests are turned away")
    seen.must(offline["shed"] > offline["offered"] / 2 and offline["shed_ms_p50"] <= 50, f"offline: {offline}")
    seen.must(memory["most"] <= memory["calm"] + 100, f"memory: {memory}")


UNREAD_S = 2.0
GRACE_S = 10.0  # app.patience's; to import it would be to import Ray before `joined` has said how
FULL_S = 20.0  # that it takes to fill all that is between a pool and a client: some MB


@row_alone("clients don't read")
async def slow_readers(size: Size, seen: Seen) -> None:
    """Their streams end, with a reason where it can be read; the ingress's memory is bounded, others' streams go on."""
    engine = {"token_interval_s": 0.001, "answer_tokens": 200_000, "max_model_len": 400_000, "kv_blocks": 100_000}
    args = {"engine": "simulated", "model": "m", "num_cpus": 0.1, "engine_args": engine}
    settings = {"models": {"m": {"pools": ["long"]}}, "admission": {"timeouts": {"unread_s": UNREAD_S}}}
    document = serve_config(free_port(), settings, [pool_application("long", {}, args)])
    with tempfile.TemporaryDirectory() as folder, rigged_with(document, Path(folder)) as rig:
        await _ask_without_reading(rig, Witness(rig.server, ("long",)), seen)


async def _ask_without_reading(rig: Rig, witness: Witness, seen: Seen) -> None:
    reader = Reader()
    reading = asyncio.create_task(reader.read(rig.url))
    await witness.until(lambda counts: counts["running"] == 1, 10)
    while reader.events < 500:
        assert not reading.done()
        await asyncio.sleep(0.05)  # until the next look
    [ingress] = rig.server.replicas("ingress")
    before = ingress.memory_info().rss
    slow = [_slow_client(rig.server) for _ in range(2)]
    asked_s = time.monotonic()
    await witness.until(lambda counts: counts["running"] == 3, 10)
    await witness.until(lambda counts: counts["running"] == 1, FULL_S + UNREAD_S)
    given_up_s, grown = time.monotonic(), ingress.memory_info().rss - before
    told = await asyncio.to_thread(_read_on, slow[0])
    await asyncio.sleep(given_up_s + GRACE_S + UNREAD_S - time.monotonic())  # past its grace
    cut = await asyncio.to_thread(_read_on, slow[1])
    grown = max(grown, ingress.memory_info().rss - before)
    seen.counts |= {
        "s until given up": round(given_up_s - asked_s, 1),
        "MB that came of each": round(len(told) / MB, 1),
        "MB more, ingress": round(grown / MB, 1),
        "ms at most between another's tokens": round(1000 * reader.longest_gap_s),
    }
    _, _, end = told.rpartition(b"data: ")
    reason = b'"code": "client_too_slow"' in end and b"timeouts.unread_s" in end and end.endswith(b"0\r\n\r\n")
    seen.must(reason, f"the one that reads later finds {end!r}")
    for received in (told, cut):
        seen.must(received.startswith(b"HTTP/1.1 200 ") and b"[DONE]" not in received, "a stream seems whole")
    seen.must(b"error" not in cut and not cut.endswith(b"0\r\n\r\n"), "the connection of the other isn't cut")
    seen.must(grown < 10 * MB, "the ingress's memory grew")
    seen.must(not reading.done() and reader.events > 2000 and reader.longest_gap_s < 1, "another client's stream stops")
    reading.cancel()
    await witness.until_idle()


def _endless(**fields: Any) -> bytes:
    messages = [{"role": "user", "content": "Go on for ever."}]
    return json.dumps({"model": "m", "messages": messages, "stream": True, "max_tokens": 200_000, **fields}).encode()


def _slow_client(server: Server) -> socket.socket:
    """A request for a stream of kilobytes a token."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(30)
    client.connect(("127.0.0.1", server.port))
    client.sendall(post(body=_endless(logprobs=True, top_logprobs=20)))
    return client


def _read_on(client: socket.socket) -> bytes:
    """All that still comes, until the connection is closed."""
    received = bytearray()
    with client:
        try:
            while data := client.recv(2**16):
                received += data
        except ConnectionResetError:
            pass
    return bytes(received)


class Reader:
    """Another client, which reads its stream."""

    def __init__(self) -> None:
        self.events = 0
        self.longest_gap_s = 0.0

    async def read(self, url: str) -> None:
        async with (
            httpx.AsyncClient(base_url=url, timeout=30) as client,
            client.stream("POST", CHAT.decode(), content=_endless()) as answer,
        ):
            last = None
            async for line in answer.aiter_lines():
                assert "error" not in line
                if line:
                    now, self.events = time.monotonic(), self.events + 1
                    self.longest_gap_s = max(self.longest_gap_s, now - (last or now))
                    last = now

"""Clients that don't read their streams, by the bytes of a socket, on a real server with HAProxy."""

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.conformance.witness import Witness, joined
from tests.live.configs import pool_application, serve_config
from tests.live.raw_http import CHAT, post
from tests.live.server import Server, serving
from tests.waiting import free_port

UNREAD_S = 2.0
GRACE_S = 10.0  # app.patience's; to import it would be to import Ray before `joined` has said how
FULL_S = 20.0  # that it takes to fill all that is between a pool and a client: some MB
MB = 2**20


def config(port: int) -> dict[str, Any]:
    engine = {
        "token_interval_s": 0.001,
        "answer_tokens": 200_000,
        "max_model_len": 400_000,
        "kv_blocks": 100_000,
    }
    args = {"engine": "simulated", "model": "m", "num_cpus": 0.1, "engine_args": engine}
    settings = {"models": {"m": {"pools": ["long"]}}, "admission": {"timeouts": {"unread_s": UNREAD_S}}}
    return serve_config(port, settings, [pool_application("long", {}, args)])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port = free_port()
    path = tmp_path_factory.mktemp("slow") / "config.yaml"
    path.write_text(yaml.safe_dump(config(port)))
    with serving(path, port, environ={"PYTHONPATH": str(Path(__file__).parents[2])}) as server, joined(server):
        yield server


def body(**fields: Any) -> bytes:
    messages = [{"role": "user", "content": "Go on for ever."}]
    return json.dumps({"model": "m", "messages": messages, "stream": True, "max_tokens": 200_000, **fields}).encode()


def ask_without_reading(server: Server) -> socket.socket:
    """A request for a stream of kilobytes a token."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(30)
    client.connect(("127.0.0.1", server.port))
    client.sendall(post(body=body(logprobs=True, top_logprobs=20)))
    return client


def read_on(client: socket.socket) -> bytes:
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

    async def read(self, server: Server) -> None:
        async with (
            httpx.AsyncClient(base_url=server.url, timeout=30) as client,
            client.stream("POST", CHAT.decode(), content=body()) as answer,
        ):
            last = None
            async for line in answer.aiter_lines():
                assert "error" not in line
                if line:
                    now, self.events = time.monotonic(), self.events + 1
                    self.longest_gap_s = max(self.longest_gap_s, now - (last or now))
                    last = now


async def test_clients_that_do_not_read(server: Server) -> None:
    witness, reader = Witness(server, ("long",)), Reader()
    reading = asyncio.create_task(reader.read(server))
    await witness.until(lambda counts: counts["running"] == 1, 10)
    while reader.events < 500:
        assert not reading.done()
        await asyncio.sleep(0.05)
    [ingress] = server.replicas("ingress")
    before = ingress.memory_info().rss
    slow = [ask_without_reading(server) for _ in range(2)]
    asked = time.monotonic()
    await witness.until(lambda counts: counts["running"] == 3, 10)
    await witness.until(lambda counts: counts["running"] == 1, FULL_S + UNREAD_S)
    given_up, grown = time.monotonic(), ingress.memory_info().rss - before

    told = await asyncio.to_thread(read_on, slow[0])
    await asyncio.sleep(given_up + GRACE_S + UNREAD_S - time.monotonic())
    cut = await asyncio.to_thread(read_on, slow[1])
    grown_after = ingress.memory_info().rss - before
    print(f"given up {given_up - asked:.1f} s after they asked; {len(told) / MB:.1f} and {len(cut) / MB:.1f} MB came;")
    print(f"the ingress grew by {grown / MB:.1f} MB, in the end {grown_after / MB:.1f};")
    print(f"another client: {reader.events} events, at most {reader.longest_gap_s:.3f} s apart")

    _, end = told.rsplit(b"data: ", 1)
    assert b'"code": "client_too_slow"' in end and b"timeouts.unread_s" in end and end.endswith(b"0\r\n\r\n")
    for received in (told, cut):
        assert received.startswith(b"HTTP/1.1 200 ") and b"[DONE]" not in received
    assert b"error" not in cut and not cut.endswith(b"0\r\n\r\n")
    assert max(grown, grown_after) < 10 * MB
    assert not reading.done() and reader.events > 2000 and reader.longest_gap_s < 1
    reading.cancel()
    await witness.until_idle()

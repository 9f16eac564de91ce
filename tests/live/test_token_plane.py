"""Streams by the token plane, on a real server."""

import os
from pathlib import Path

import httpx

from deployments.settings import cache_dir
from tests.conformance.server_config import model_of
from tests.live.server import Server

CONNECTED = "03"  # in /proc/net/unix


def test_streams_come_by_the_socket_of_the_node(server: Server) -> None:
    body = {"model": model_of("simulated"), "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json={**body, "max_tokens": 8}, timeout=60)
    assert answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n")
    log = (cache_dir() / "logs" / f"serve-{server.port}.log").read_text()
    assert "connection to the ingress: " not in log and "can't reach this ingress by socket" not in log
    [ingress] = server.replicas("ingress")
    assert connections(ingress.pid)


def connections(pid: int) -> list[str]:
    """The token plane's Unix sockets that are connected in a process."""
    own = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            own.add(os.readlink(link))
        except FileNotFoundError:
            continue  # closed meanwhile
    rows = [line.split() for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]]
    named = [row for row in rows if len(row) == 8 and row[7].startswith("@enginehouse-") and row[5] == CONNECTED]
    return [row[7] for row in named if f"socket:[{row[6]}]" in own]

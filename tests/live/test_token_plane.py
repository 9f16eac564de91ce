"""Streams by the token plane, and without it, on real servers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx

from deployments.settings import cache_dir
from tests.conformance.server_config import model_of
from tests.live.server import Server

ROOT = Path(__file__).parents[2]
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


def test_the_suite_passes_without_the_token_plane() -> None:
    command = [sys.executable, "-m", "tests.conformance", "--engine", "simulated", "--json"]
    environ = {**os.environ, "ENGINEHOUSE_INGRESS_TOKEN_PLANE": "false"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=600)
    failed = [line for line in done.stderr.splitlines() if " fail " in line]
    assert done.returncode == 0, failed or done.stderr[-2000:]
    outcomes = list(json.loads(done.stdout)["engines"]["simulated"].values())
    assert set(outcomes) <= {"pass", "refused", "n/a"} and outcomes.count("pass") > 100

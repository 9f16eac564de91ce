"""Replicas that are killed, and models that come and go."""

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from deployments import environments, guard
from tests.conformance.server_config import model_of
from tests.conformance.witness import dashboard_of
from tests.live.server import Server, deploy
from tests.waiting import wait_until

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def ask(server: Server, model: str, **fields: Any) -> httpx.Response:
    body = {"model": model, "messages": QUESTION, "temperature": 0, "max_tokens": 16, **fields}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=300)  # a replica may have to start


def answers(server: Server, model: str) -> bool:
    answer = ask(server, model)
    assert answer.status_code in (200, 503), answer.text
    if answer.status_code == 503:
        assert int(answer.headers["retry-after"]) >= 1
    return answer.status_code == 200


def family(server: Server, pool: str) -> list[psutil.Process]:
    """A pool's replica and every process of its engine."""
    [replica] = server.replicas(pool)
    return [replica, *map(psutil.Process, guard.members(replica.pid))]


def test_replica_killed(server: Server, engine: str) -> None:
    """SIGKILL: no process of its engine outlives it by 10 s, and the pool serves again without help."""
    before = family(server, engine)
    if engine in environments.ENGINES:
        assert len(before) > 1, "the engine computes in processes of its own"
    [replica] = server.replicas(engine)
    os.kill(replica.pid, signal.SIGKILL)
    wait_until(lambda: not [process for process in before if process.is_running()], "the engine's processes end", 10)
    wait_until(lambda: answers(server, model_of(engine)), "the pool serves again", 300, pause_s=0.5)
    assert server.replicas(engine)[0].pid != replica.pid


def test_models_change_live(server: Server, cluster: Any, config: Path, tmp_path: Path) -> None:
    """A new name is served, one whose pool isn't there is a 503, and no replica restarts."""
    document = yaml.safe_load(config.read_text())
    document["http_options"]["port"] = server.port
    replicas = [process.pid for process in server.replicas("transformers") + server.replicas("ingress")]
    models = document["applications"][0]["deployments"][0]["user_config"]["models"]
    models |= {"alias": {"pools": ["missing", "transformers"]}, "ghost": {"pools": ["missing"]}}
    deploy(dashboard_of(cluster), document, tmp_path)
    wait_until(lambda: "alias" in httpx.get(f"{server.url}/v1/models").text, "the new names are listed", 30)
    assert ask(server, "alias").json()["choices"][0]["message"]["content"] == "The capital of France is Paris."
    answer = ask(server, "ghost")
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["error"]["code"] == "pool_not_ready"
    assert "'missing' is not deployed" in answer.json()["error"]["message"]
    del models["alias"], models["ghost"]
    deploy(dashboard_of(cluster), document, tmp_path)
    wait_until(lambda: ask(server, "alias").status_code == 404, "the names are gone", 30)
    assert [p.pid for p in server.replicas("transformers") + server.replicas("ingress")] == replicas


def test_every_port_is_on_loopback(server: Server) -> None:
    """The ingress's, Ray's and the replicas' own, which would unpickle what anybody sends them."""
    listening = server.listening()
    assert len(listening) > 5
    assert {address for _, address in listening} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, listening

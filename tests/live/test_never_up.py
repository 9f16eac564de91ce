"""Pools that never come up: what is said of them, and what they cost those that do."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conformance.server_config import model_of
from tests.live.configs import pool_application
from tests.live.fixtures import changed
from tests.live.server import Server
from tests.waiting import wait_until

POOLS = ("unknown-architecture", "no-files")
WATCHED_S = 5.0
MOST_CORES = 0.05  # that the ingress may use, with a client that asks five times a second


@pytest.fixture(scope="module")
def never_up(server: Server, config: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folders = {name: tmp_path_factory.mktemp(name) for name in POOLS}
    unknown = {"architectures": ["NoSuchForCausalLM"], "model_type": "no-such"}
    (folders["unknown-architecture"] / "config.json").write_text(json.dumps(unknown))
    pools = [
        pool_application(name, {}, {"engine": "transformers", "model": str(folder), "num_cpus": 0.1})
        for name, folder in folders.items()
    ]
    with changed(server, config, {}, *pools):
        yield server


def test_they_cost_the_ingress_next_to_nothing(never_up: Server) -> None:
    """While Serve tries again, and after it has given up."""
    [ingress] = never_up.replicas("ingress")
    for wanted in ("updating", "deploy_failed"):
        wait_until(lambda wanted=wanted: wanted in _states(never_up), f"a pool is {wanted}")  # type: ignore[misc]
        before, began_s = ingress.cpu_times(), time.monotonic()
        while time.monotonic() - began_s < WATCHED_S:
            assert ask(never_up, POOLS[0]).status_code == 503
            time.sleep(0.2)  # as a client that doesn't give up
        after, seconds = ingress.cpu_times(), time.monotonic() - began_s
        used = (after.user + after.system - before.user - before.system) / seconds
        assert used < MOST_CORES, f"{wanted}: {used:.1%} of a core"
    assert _states(never_up) == ["deploy_failed"] * len(POOLS)


def _states(server: Server) -> list[str]:
    states = server.states()
    return [states[name] for name in POOLS]


def test_clients_are_told_and_others_are_answered(never_up: Server) -> None:
    answer = ask(never_up, POOLS[1])
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "pool_not_ready")
    assert ask(never_up, model_of("simulated")).status_code == 200


def ask(server: Server, model: str) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 2}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=30)

"""What the tests of this folder share: pools that need GPUs, on a cluster of declared ones."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from tests.live.configs import pool_application, serve_config
from tests.live.nodes import Nodes
from tests.live.server import deploy


def pool(name: str, serve: Mapping[str, Any] | None = None, **args: Any) -> dict[str, Any]:
    """A simulated pool, which needs what it is said to."""
    return pool_application(name, dict(serve or {}), {"engine": "simulated", "model": name, "num_cpus": 0.1, **args})


def document(port: int, pools: list[dict[str, Any]]) -> dict[str, Any]:
    """A configuration of these pools, each a model of its own."""
    settings = {"models": {each["name"]: {"pools": [each["name"]]} for each in pools}}
    # One that asks for no CPU may be put on the head, which has none to give.
    config = serve_config(port, settings, pools, ray_actor_options={"num_cpus": 0.1})
    return {**config, "proxy_location": "HeadOnly"}


@dataclass(frozen=True, slots=True)
class Replica:
    """Where one is, and the GPUs that it sees."""

    node: str
    gpus: tuple[int, ...]


class Placed:
    """A cluster with a configuration on it."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes

    def deploy(self, config: Mapping[str, Any]) -> None:
        deploy(self.nodes.dashboard, config, self.nodes.folder)

    def states(self) -> dict[str, str]:
        """Each pool's, as the ingress sees it; nothing while there is no ingress."""
        return self.nodes.server.states()

    def replicas(self, name: str) -> list[Replica]:
        """Those of a pool that run, as Serve and their own logs say."""
        answer = httpx.get(f"{self.nodes.dashboard}/api/serve/applications/", timeout=10).json()
        running = [
            each
            for each in answer["applications"][name]["deployments"]["Pool"]["replicas"]
            if each["state"] == "RUNNING"
        ]
        return [Replica(each["node_id"], self._gpus(each["replica_id"])) for each in running]

    def _gpus(self, replica: str) -> tuple[int, ...]:
        logs = self.nodes.folder.glob(f"ray/session_2*/logs/serve/*{replica}*.log")
        found = {
            match.group(1) for log in logs for match in re.finditer(r"GPUs of this replica: (.*)", log.read_text())
        }
        assert len(found) == 1, f"{replica}: {found}"
        [seen] = found
        return () if seen == "none" else tuple(json.loads(f"[{seen}]"))

    def ask(self, model: str) -> httpx.Response:
        body = {"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": "Hi."}]}
        return httpx.post(f"{self.nodes.server.url}/v1/chat/completions", json=body, timeout=60)

"""Each example config of `cluster/` on a cluster that has what it asks for; what can't run here is simulated."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.config import PoolConfig
from tests.cluster.placed import Placed, document
from tests.live.nodes import nodes
from tests.live.server import ROOT
from tests.waiting import wait_until

FOLDER = ROOT / "cluster"
# These are served as they are, by tests/engines/test_embeddings.py, and by the conformance suite's server.
REAL = {"cpu-embeddings.yaml", "cpu-engines.yaml"}
EXAMPLES = sorted(path for path in FOLDER.glob("*.yaml") if path.name not in REAL)
UP_S = 240  # one has 23 pools


@pytest.fixture(scope="module")
def cluster() -> Iterator[Placed]:
    """Room for the largest, on few nodes: where each replica is put is seen by `test_placement`."""
    with nodes() as started:
        started.start_head()
        started.server.process = started.start_node("eight", 16, 32, "A100", {"ray.io/node-group": "eight"})
        started.start_node("four", 16, 32, "A100", {"ray.io/node-group": "four"})
        placed = Placed(started)
        placed.deploy(document(started.port, []))
        yield placed


def simulated(config: dict[str, Any]) -> dict[str, Any]:
    """The same config, with every pool on the simulated engine, which gets as many GPUs as its own engine would."""
    found = copy.deepcopy(config)
    ingress, *pools = found["applications"]
    # One that asks for no CPU may be put on the head, which has none to give.
    ingress["deployments"][0]["ray_actor_options"] = {"num_cpus": 0.1}
    for pool in pools:
        args = PoolConfig.model_validate(pool["args"])
        kept = {key: value for key, value in pool["args"].items() if key not in ("engine", "engine_args")}
        pool["args"] = {**kept, "engine": "simulated", "gpus": args.need.gpus, "num_cpus": min(args.num_cpus, 0.1)}
        pool["args"]["engine_args"] = {"time_factor": 0}
    return found


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_pool_comes_up_and_every_model_answers(cluster: Placed, path: Path) -> None:
    config = simulated(yaml.safe_load(path.read_text()))
    config["http_options"]["port"] = cluster.nodes.port
    cluster.deploy(config)
    names = {application["name"] for application in config["applications"][1:]}
    wait_until(lambda: cluster.states() == dict.fromkeys(names, "running"), f"{path.name}: all pools", UP_S, 0.2)
    for model in config["applications"][0]["deployments"][0]["user_config"]["models"]:
        answer = cluster.ask(model)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-enginehouse-pool"] in names

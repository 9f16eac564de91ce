"""`cluster/two-engines.yaml` on nodes as it is for: simulated engines in place of the real, everything else as shipped.

What is simulated is the engine alone: each pool's GPUs, their kind, and its nodes' labels come from its own lines.
"""

import asyncio
import copy
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml

from deployments.config import PoolConfig
from tests.cluster.placed import Placed
from tests.faults.load import Clients
from tests.live.nodes import Nodes, nodes
from tests.live.server import ROOT
from tests.waiting import wait_until

SWAPPED = "llama-3.2-1b"
SHIPPED: dict[str, Any] = yaml.safe_load((ROOT / "cluster" / "two-engines.yaml").read_text())
POOLS = {app["name"]: PoolConfig.model_validate(app["args"]) for app in SHIPPED["applications"][1:]}


def simulated(nodes: Nodes) -> dict[str, Any]:
    document = copy.deepcopy(SHIPPED)
    document |= {"proxy_location": "EveryNode", "http_options": {"host": "127.0.0.1", "port": nodes.port}}
    ingress, *pools = document["applications"]
    # One that asks for no CPU may be put on the head, which has none to give.
    ingress["deployments"][0]["ray_actor_options"] = {"num_cpus": 0.1}
    for each in pools:
        args = each["args"]
        # A name to the simulated engine, a model to the one that is swapped in.
        model = "smollm2-135m-instruct" if each["name"] == SWAPPED else args["model"]
        instead: dict[str, Any] = {"engine": "simulated", "model": model, "engine_args": {}, "num_cpus": 0.05}
        each["args"] = {**args, **instead, "gpus": POOLS[each["name"]].need.gpus}
    return document


@pytest.fixture(scope="module")
def cluster() -> Iterator[Placed]:
    with nodes() as started:
        started.start_head()
        for number in range(3):
            process = started.start_node(f"eight-{number}", 2, 8, "A100", {"ray.io/node-group": "eight"})
        for number in range(7):
            started.start_node(f"four-{number}", 2, 4, "A100", {"ray.io/node-group": "four"})
        started.server.process = process
        placed = Placed(started)
        placed.deploy(simulated(started))
        started.server.wait_until_ready()
        yield placed


def test_every_model_is_placed_on_gpus_of_its_own(cluster: Placed) -> None:
    replicas = {name: cluster.replicas(name) for name in POOLS}
    assert len(replicas) == 23
    assert {name: [len(each.gpus) for each in found] for name, found in replicas.items()} == {
        name: [pool.need.gpus] for name, pool in POOLS.items()
    }
    taken = Counter((each.node, gpu) for found in replicas.values() for each in found for gpu in each.gpus)
    assert set(taken.values()) == {1}
    groups = {name: POOLS[name].node_labels["ray.io/node-group"] for name in POOLS}
    eight = {each.node for name, found in replicas.items() if groups[name] == "eight" for each in found}
    four = {each.node for name, found in replicas.items() if groups[name] == "four" for each in found}
    assert (len(eight), len(four)) == (3, 7)
    assert not eight & four


def test_all_23_names_answer(cluster: Placed) -> None:
    listed = httpx.get(f"{cluster.nodes.server.url}/v1/models", timeout=30).json()["data"]
    assert {each["id"] for each in listed} == set(POOLS)
    for name in POOLS:
        answer = cluster.ask(name)
        assert (answer.status_code, answer.headers["x-enginehouse-pool"]) == (200, name)


async def test_one_line_swaps_an_engine_while_the_other_22_serve_on(cluster: Placed) -> None:
    server, others = cluster.nodes.server, [name for name in POOLS if name != SWAPPED]
    changed = simulated(cluster.nodes)
    [pool] = [each for each in changed["applications"] if each["name"] == SWAPPED]
    pool["args"]["engine"] = "transformers"
    before = {name: [process.pid for process in server.replicas(name)] for name in others}
    loads = [Clients(server.url, name, 1) for name in others]
    running = [asyncio.ensure_future(load.run(sys.maxsize)) for load in loads]
    await asyncio.to_thread(cluster.deploy, changed)

    def swapped() -> bool:
        answer = cluster.ask(SWAPPED)
        return answer.headers.get("x-enginehouse-engine") == "transformers" and answer.status_code == 200

    await asyncio.to_thread(wait_until, swapped, "the other engine answers", 180, 0.5)
    for load in loads:
        load.stop()
    await asyncio.gather(*running)
    for name, load in zip(others, loads, strict=True):
        assert load.tally.all == load.tally.answered[name] > 0, (name, load.tally.counts())
    assert {name: [process.pid for process in server.replicas(name)] for name in others} == before
    print(f"{sum(load.tally.all for load in loads)} requests of the other 22 models, all answered")

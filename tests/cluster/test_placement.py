"""Replicas on a cluster of several nodes, whose GPUs, kinds of GPU and labels are declared. Ray places them."""

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.cluster.placed import Placed, document, pool
from tests.live.nodes import nodes
from tests.waiting import wait_until

POOLS = [
    pool("pairs", {"num_replicas": 3}, gpus=2, gpu_type="A100"),
    pool("halves", {"num_replicas": 2}, gpus=0.5, gpu_type="H100"),
    pool("whole", gpus=4, node_labels={"group": "big"}),
    pool("elsewhere", gpus=1, node_labels={"group": "!big"}, gpu_type="A100"),
    pool("none"),
]
SAID_S = 10


@pytest.fixture(scope="module")
def cluster() -> Iterator[Placed]:
    with nodes() as started:
        started.start_head()
        started.server.process = started.start_node("one", 4, 4, "A100", {"group": "small"})
        started.start_node("two", 4, 4, "A100", {"group": "small"})
        started.start_node("big", 4, 8, "H100", {"group": "big"})
        placed = Placed(started)
        placed.deploy(document(started.port, POOLS))
        started.wait_until_ready()
        yield placed


def test_each_replica_has_its_gpus_for_itself(cluster: Placed) -> None:
    replicas = cluster.replicas("pairs") + cluster.replicas("elsewhere") + cluster.replicas("whole")
    assert sorted(len(each.gpus) for each in replicas) == [1, 2, 2, 2, 4]
    taken = Counter((each.node, gpu) for each in replicas for gpu in each.gpus)
    assert set(taken.values()) == {1}
    assert len({each.node for each in cluster.replicas("pairs")}) == 2  # of 4 GPUs, one has room for two


def test_two_replicas_of_half_a_gpu_share_one(cluster: Placed) -> None:
    one, other = cluster.replicas("halves")
    assert one == other
    assert len(one.gpus) == 1


def test_labels_and_kinds_of_gpus_choose_the_node(cluster: Placed) -> None:
    [whole] = cluster.replicas("whole")
    assert {each.node for each in cluster.replicas("halves")} == {whole.node}
    small = {each.node for each in cluster.replicas("pairs") + cluster.replicas("elsewhere")}
    assert whole.node not in small


def test_what_asks_for_no_gpu_sees_none(cluster: Placed) -> None:
    [replica] = cluster.replicas("none")
    assert replica.gpus == ()


def test_what_can_t_be_placed_says_so(cluster: Placed) -> None:
    more = [pool("huge", gpus=16), pool("late", gpus=8, gpu_type="A100")]
    cluster.deploy(document(cluster.nodes.port, [*POOLS, *more]))
    wait_until(lambda: "huge" in cluster.states(), "the new pools are known")
    until_said(cluster, "huge", "needs 16 GPUs")
    until_said(cluster, "late", "needs 8 A100 GPUs")
    states = cluster.states()
    there = "1 node with no GPU and 0 CPUs; 2 nodes with 4 A100 GPUs and 4 CPUs; 1 node with 8 H100 GPUs and 4 CPUs"
    assert states.pop("huge").startswith("not placed: each replica needs 16 GPUs, 0.1 CPUs on one node, which none of")
    kinds = states.pop("late").partition("has: ")[2].split("; ")
    assert sorted(kinds) == sorted(there.split("; "))
    assert set(states.values()) == {"running"}
    answer = cluster.ask("huge")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "pool_not_ready")
    assert "not placed" in answer.json()["error"]["message"]
    assert "H100" not in answer.text
    assert cluster.ask("pairs").status_code == 200


def until_said(cluster: Placed, name: str, need: str) -> None:
    wait_until(lambda: cluster.states()[name] != "deploying", "Serve has built it")
    wait_until(lambda: need in cluster.states()[name], "it says so", SAID_S)


def test_a_new_node_takes_what_waited(cluster: Placed) -> None:
    cluster.nodes.start_node("new", 4, 8, "A100", {"group": "small"})
    wait_until(lambda: cluster.states().get("late") == "running", "the waiting replica is placed", 60)
    assert cluster.ask("late").status_code == 200


def test_a_node_s_replicas_come_back_on_others(cluster: Placed) -> None:
    before = Counter(each.node for each in cluster.replicas("pairs"))
    cluster.nodes.start_node("spare", 4, 8, "A100", {"group": "small"})
    cluster.nodes.kill("two")

    def whole() -> bool:
        states = cluster.states()
        states.pop("huge", None)
        return set(states.values()) == {"running"} and len(cluster.replicas("pairs")) == 3

    lost = [node for node in before if node not in {each.node for each in cluster.replicas("pairs")}]
    wait_until(whole, "the pool is whole again", 180)
    after = cluster.replicas("pairs")
    taken = Counter((each.node, gpu) for each in after for gpu in each.gpus)
    assert set(taken.values()) == {1}
    assert not {each.node for each in after} & set(lost)
    assert cluster.ask("pairs").status_code == 200

"""What a replica needs, and why no node gives it."""

import pytest
from pydantic import ValidationError

from deployments.config import PoolConfig
from deployments.placement import Need, Node, matches, why_not
from deployments.pool import build


def node(gpus: float = 0, kind: str | None = None, free: float | None = None, cpus: float = 8, **labels: str) -> Node:
    kinds = {f"accelerator_type:{kind}": 1.0} if kind else {}
    total = {"CPU": cpus, **({"GPU": gpus} if gpus else {}), **kinds}
    return Node(total, {**total, "GPU": gpus if free is None else free}, labels)


FOUR, EIGHT = node(4, "A100"), node(8, "H100", zone="b")


@pytest.mark.parametrize(
    ("need", "nodes"),
    [
        (Need(cpus=1), [node()]),
        (Need(cpus=1, gpus=4), [FOUR]),
        (Need(gpus=4, gpu_type="A100"), [EIGHT, FOUR]),
        (Need(gpus=0.3), [node(1, free=0.3)]),  # which Ray counts in ten-thousandths
        (Need(gpus=0.3), [node(1, free=1 - 0.7)]),
        (Need(gpus=1, labels={"zone": "b"}), [FOUR, EIGHT]),
    ],
    ids=str,
)
def test_a_node_that_has_it_free_takes_it(need: Need, nodes: list[Node]) -> None:
    assert why_not(need, nodes) is None


@pytest.mark.parametrize(
    ("need", "nodes", "why"),
    [
        (
            Need(cpus=1, gpus=8, gpu_type="A100"),
            [FOUR, FOUR, EIGHT],
            "each replica needs 8 A100 GPUs, 1 CPU on one node, which none of the cluster's has: "
            "2 nodes with 4 A100 GPUs and 8 CPUs; 1 node with 8 H100 GPUs and 8 CPUs",
        ),
        (
            Need(gpus=1, labels={"zone": "a"}),
            [FOUR, EIGHT],
            "each replica needs 1 GPU, labels zone=a on one node, which none of the cluster's has: "
            "1 node with 4 A100 GPUs and 8 CPUs; 1 node with 8 H100 GPUs and 8 CPUs",
        ),
        (
            Need(cpus=2, gpus=4),
            [node(4, free=3), node(4, free=1), node()],
            "each replica needs 4 GPUs, 2 CPUs on one node, and waits for one to be free: of 2 such, "
            "1 of 4 GPUs are free; 3 of 4 GPUs are free",
        ),
        (
            Need(cpus=9),
            [node()],
            "each replica needs 9 CPUs on one node, which none of the cluster's has: 1 node with no GPU and 8 CPUs",
        ),
        (Need(gpus=1), [], "each replica needs 1 GPU on one node, which none of the cluster's has: no node"),
    ],
    ids=str,
)
def test_otherwise_it_says_what_is_needed_and_what_there_is(need: Need, nodes: list[Node], why: str) -> None:
    assert why_not(need, nodes) == why


@pytest.mark.parametrize(
    ("selector", "value", "fits"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a", None, False),
        ("!a", "b", True),
        ("!a", "a", False),
        ("!a", None, True),
        ("in(a, b)", "b", True),
        ("in(a, b)", "c", False),
        ("in(a)", None, False),
        ("!in(a, b)", "b", False),
        ("!in(a,b)", "c", True),
        ("!in(a, b)", None, True),
    ],
)
def test_labels_are_selected_as_ray_does(selector: str, value: str | None, fits: bool) -> None:
    assert matches(selector, value) == fits


@pytest.mark.parametrize(
    ("engine", "args", "gpus"),
    [
        ("vllm", {}, 1),
        ("vllm", {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}, 8),
        ("vllm", {"data_parallel_size": 2}, 2),
        ("sglang", {"tp_size": 2, "pp_size": 2}, 4),
        ("tensorrt_llm", {"tensor_parallel_size": 8}, 8),
        ("transformers", {}, 0),
        ("transformers", {"device": "cuda"}, 1),
        ("tgi", {"urls": ["http://tgi:80"]}, 0),
        ("tgi", {"launch": {}}, 1),
        ("tgi", {"launch": {"num_shard": 2}}, 2),
        ("simulated", {}, 0),
    ],
    ids=str,
)
def test_an_engine_s_own_words_say_how_many_gpus(engine: str, args: dict[str, object], gpus: int) -> None:
    assert PoolConfig(engine=engine, model="m", engine_args=args).need.gpus == gpus


def test_a_pool_s_own_words_come_first() -> None:
    pool = PoolConfig(engine="vllm", model="m", gpus=0.5, num_cpus=2, gpu_type="L4", node_labels={"zone": "a"})
    assert pool.need == Need(2, 0.5, "L4", {"zone": "a"})
    assert PoolConfig(engine="vllm", model="m", gpus=0, engine_args={"tensor_parallel_size": 2}).need == Need(1)
    assert build(pool)._bound_deployment.ray_actor_options == {
        "num_cpus": 2,
        "num_gpus": 0.5,
        "accelerator_type": "L4",
        "label_selector": {"zone": "a"},
        "runtime_env": {"py_executable": "engine-python vllm"},
    }


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"gpus": 1.5}, "gpus: 1.5 can't be had: a replica has whole GPUs, or a part of one"),
        ({"gpus": -1}, "greater than or equal to 0"),
        ({"gpus": float("inf")}, "finite"),
        (
            {"gpus": 2, "engine_args": {"tensor_parallel_size": 4}},
            "gpus: 2 is too few: the parallel sizes in engine_args come to 4",
        ),
        ({"gpus": 0, "gpu_type": "A100"}, "gpu_type is of GPUs, and there are none; say how many: 'gpus: 1'"),
    ],
    ids=str,
)
def test_what_can_t_be_is_refused(args: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError, match=why.replace("(", r"\(")):
        PoolConfig.model_validate({"engine": "vllm", "model": "m", **args})


@pytest.mark.parametrize("size", [0, -1, 1.5, "2", True, None])
def test_a_parallel_size_is_a_whole_number(size: object) -> None:
    pool = PoolConfig(engine="vllm", model="m", engine_args={"tensor_parallel_size": size})
    with pytest.raises(ValidationError, match="'tensor_parallel_size' has to be a whole number, 1 or more"):
        build(pool)


@pytest.mark.parametrize(
    ("engine", "given", "key", "part"),
    [
        ("vllm", {}, "gpu_memory_utilization", 0.45),
        ("vllm", {"gpu_memory_utilization": 0.3}, "gpu_memory_utilization", 0.3),
        ("sglang", {}, "mem_fraction_static", 0.425),
    ],
)
def test_a_part_of_a_gpu_is_a_part_of_its_memory(engine: str, given: dict[str, object], key: str, part: float) -> None:
    pool = PoolConfig(engine=engine, model="m", gpus=0.5, engine_args=given)
    assert (pool.typed_engine_args().model_extra or {})[key] == part
    assert key not in (PoolConfig(engine=engine, model="m", gpus=1).typed_engine_args().model_extra or {})

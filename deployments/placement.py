"""What a replica needs of a node, and why no node gives it. Pure; the cluster is told of, not asked."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

ROUNDING = 1e-4  # Ray counts resources in ten-thousandths
ACCELERATOR = "accelerator_type:"  # what Ray's resource for a kind of GPU begins with


@dataclass(frozen=True, slots=True)
class Need:
    """What one replica needs, all of it on one node."""

    cpus: float = 0
    gpus: float = 0
    gpu_type: str | None = None  # as Ray calls it
    labels: Mapping[str, str] = field(default_factory=dict)  # a Ray label selector

    def __str__(self) -> str:
        parts = [_gpus(self.gpus, self.gpu_type)] if self.gpus else []
        parts += [f"{self.cpus:g} CPU{'s' * (self.cpus != 1)}"] if self.cpus else []
        parts += [f"labels {', '.join(f'{key}={value}' for key, value in self.labels.items())}"] if self.labels else []
        return ", ".join(parts) or "nothing"


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster, as Ray counts it."""

    total: Mapping[str, float]
    free: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def gpu_type(self) -> str | None:
        kinds = [name.removeprefix(ACCELERATOR) for name in self.total if name.startswith(ACCELERATOR)]
        return min(kinds, default=None)

    def __str__(self) -> str:
        gpus = self.total.get("GPU", 0)
        return f"{_gpus(gpus, self.gpu_type) if gpus else 'no GPU'} and {self.total.get('CPU', 0):g} CPUs"


def _gpus(count: float, kind: str | None) -> str:
    return f"{count:g} {kind + ' ' if kind else ''}GPU{'s' * (count != 1)}"


def why_not(need: Need, nodes: Sequence[Node]) -> str | None:
    """Why no node takes one more such replica, in a sentence; None where one does."""
    able = [node for node in nodes if _fits(need, node.total, node.labels)]
    if not able:
        kinds = Counter(map(str, nodes))
        there = "; ".join(f"{count} node{'s' * (count != 1)} with {kind}" for kind, count in kinds.items())
        return f"each replica needs {need} on one node, which none of the cluster's has: {there or 'no node'}"
    if any(_fits(need, node.free, node.labels) for node in able):
        return None
    free = "; ".join(sorted({_free(need, node) for node in able}))
    return f"each replica needs {need} on one node, and waits for one to be free: of {len(able)} such, {free}"


def _free(need: Need, node: Node) -> str:
    if need.gpus:
        return f"{node.free.get('GPU', 0):g} of {node.total.get('GPU', 0):g} GPUs are free"
    return f"{node.free.get('CPU', 0):g} of {node.total.get('CPU', 0):g} CPUs are free"


def _fits(need: Need, resources: Mapping[str, float], labels: Mapping[str, str]) -> bool:
    wanted = {"CPU": need.cpus, "GPU": need.gpus}
    if need.gpu_type is not None:
        wanted[ACCELERATOR + need.gpu_type] = 0.001  # what Ray takes of it
    enough = all(resources.get(name, 0) + ROUNDING / 2 >= amount for name, amount in wanted.items() if amount)
    return enough and all(matches(selector, labels.get(key)) for key, selector in need.labels.items())


def matches(selector: str, value: str | None) -> bool:
    """Whether a node's label, None where it has none, is as one of Ray's selectors wants it: `a`, `!a`, `in(a, b)`,
    `!in(a, b)`."""
    wanted = not selector.startswith("!")
    text = selector.removeprefix("!").strip()
    names = text[3:-1].split(",") if text.startswith("in(") and text.endswith(")") else [text]
    return (value in {name.strip() for name in names}) == wanted

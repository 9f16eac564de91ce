"""Replicas that Ray has found no node for, and why: what they need, and what the cluster has."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray.serve import context

from deployments.placement import ACCELERATOR, Need, Node, why_not

PATIENCE_S = 3.0  # in which Ray finds a node for a replica where there is one


def look(patience_s: float = PATIENCE_S) -> dict[str, str]:
    """Why, in a sentence, by the application. Asks Serve's controller and Ray's head, and waits for both."""
    client: Any = context._get_global_client()
    waiting = waiting_needs(client.get_serve_details(), time.time() - patience_s)
    cluster = _nodes() if waiting else []
    return {name: why for name, need in waiting.items() if (why := why_not(need, cluster)) is not None}


def waiting_needs(details: Mapping[str, Any], before_s: float) -> dict[str, Need]:
    """What one replica needs of each application that has some without a node since `before_s`, in seconds since the
    epoch, or earlier; from the controller's details."""
    return {
        name: _need(deployment)
        for name, application in details["applications"].items()
        for deployment in application["deployments"].values()
        if any(_waits(replica, before_s) for replica in deployment["replicas"])
    }


def _waits(replica: Mapping[str, Any], before_s: float) -> bool:
    return replica["state"] == "STARTING" and not replica.get("node_id") and replica["start_time_s"] <= before_s


def _need(deployment: Mapping[str, Any]) -> Need:
    resources: Mapping[str, float] = deployment["required_resources"]
    kinds = [name.removeprefix(ACCELERATOR) for name in resources if name.startswith(ACCELERATOR)]
    labels = deployment["deployment_config"]["ray_actor_options"].get("label_selector") or {}
    return Need(resources.get("CPU", 0), resources.get("GPU", 0), min(kinds, default=None), labels)


def _nodes() -> Sequence[Node]:
    free: Any = available_resources_per_node()  # type: ignore[no-untyped-call]
    every: Any = ray.nodes()  # type: ignore[no-untyped-call]
    alive = [node for node in every if node["Alive"]]
    return [Node(node["Resources"], free.get(node["NodeID"], {}), node.get("Labels", {})) for node in alive]

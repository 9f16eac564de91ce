"""Serve configs of an ingress and pools, for tests that start a server of their own."""

from collections.abc import Sequence
from typing import Any


def pool_application(name: str, deployment: dict[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    """A pool; `deployment` is what Serve is told of it, `args` the pool's own configuration."""
    return {
        "name": name,
        "route_prefix": None,
        "import_path": "deployments.pool:build",
        "deployments": [{"name": "Pool", **deployment}],
        "args": args,
    }


def serve_config(
    port: int, settings: dict[str, Any], pools: Sequence[dict[str, Any]], **deployment: Any
) -> dict[str, Any]:
    """An ingress with these settings, on loopback, before these pools."""
    ingress = {
        "name": "ingress",
        "route_prefix": "/",
        "import_path": "app.main:build",
        "deployments": [{"name": "Ingress", **deployment, "user_config": settings}],
    }
    return {"http_options": {"host": "127.0.0.1", "port": port}, "applications": [ingress, *pools]}

"""The ingress application: `import_path: app.main:build`."""

from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.serve import Application

from app.config import IngressArgs, load_ingress_config
from app.ingress import Gateway, create_app
from app.pools import PoolDirectory
from deployments import replica_port


# FastAPI's application is made in the replica, not pickled into it: no FastAPI version's class-based views matter.
@serve.ingress()
class Ingress:
    """An ingress replica. It starts without waiting for any pool."""

    def __init__(self) -> None:
        replica_port.bind_to_node()
        self._gateway = Gateway(PoolDirectory())

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Take a new configuration; requests that are under way keep what they were routed by."""
        self._gateway.config = load_ingress_config(user_config)

    async def __serve_build_asgi_app__(self) -> FastAPI:
        self._gateway.pools.watch(lambda: self._gateway.config.status_interval_s)
        return create_app(self._gateway)


deployment = serve.deployment(name="Ingress", max_ongoing_requests=10_000, ray_actor_options={"num_cpus": 0})(Ingress)


def build(args: IngressArgs) -> Application:
    """The ingress's application."""
    return deployment.bind()

"""The ingress application: `import_path: app.main:build`."""

import asyncio
import logging
from typing import Any

import ray
from ray import serve
from ray.serve import Application

from app import grpc_cancel
from app.access.access import Access
from app.access.listening import served_host
from app.admission.budget import Place
from app.config import IngressArgs, load_ingress_config
from app.gateway import Gateway
from app.ingress import Door, create_app
from app.pools import PoolDirectory, running_replicas
from deployments import replica_port
from deployments.plane.hub import Hub

logger = logging.getLogger("ray.serve")


# FastAPI's application is made in the replica, not pickled into it: no FastAPI version's class-based views matter.
@serve.ingress()
class Ingress:
    """An ingress replica. It starts without waiting for any pool."""

    def __init__(self) -> None:
        replica_port.bind_to_node()
        grpc_cancel.install()
        self._gateway = Gateway(PoolDirectory(), access=Access(host=None))

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Take a new configuration; requests that are under way keep what they were routed by."""
        self._gateway.configure(load_ingress_config(user_config))

    async def stats(self) -> dict[str, int]:
        """What this replica holds at the moment: of a request that has ended, nothing."""
        hub, gate = self._gateway.caller.hub, self._gateway.gate
        return {
            "tasks": len(asyncio.all_tasks()),
            "streams": hub.open_streams if hub else 0,
            "running": gate.running,
            "queued": gate.queued,
        }

    def _looked(self, status: Any) -> None:
        """Each of the ingress's replicas holds a part of the limits."""
        context = serve.get_replica_context()
        rank = context.rank.rank
        running = running_replicas(status, context.app_name, context.deployment)
        place = Place(rank, max(rank + 1, running))
        self._gateway.gate.move(place)
        self._gateway.access.move(place)

    async def __serve_build_asgi_app__(self) -> Door:
        self._gateway.access.listen_on(await asyncio.to_thread(served_host))
        self._gateway.access.watch()
        self._gateway.pools.watch(lambda: self._gateway.config.status_interval_s, self._looked)
        self._gateway.caller.hub = await _hub()
        return create_app(self._gateway)


async def _hub() -> Hub | None:
    """Where replicas send streams; None where this process may not listen."""
    hub = Hub()
    node: str = ray.get_runtime_context().get_node_id()
    host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    try:
        await hub.start(node, host)
    except OSError as error:
        logger.warning("no socket can be opened on %s (%s): streams come by Ray, at a price", host, error)
        return None
    return hub


deployment = serve.deployment(name="Ingress", max_ongoing_requests=10_000, ray_actor_options={"num_cpus": 0})(Ingress)


def build(args: IngressArgs) -> Application:
    """The ingress's application."""
    return deployment.bind()

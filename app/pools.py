"""The pools as the ingress sees them: which are up, and a handle to each."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from app import unplaced
from app.resilience.breaker import Breakers
from app.routing.decide import PoolView
from deployments.adapter_store import AdapterStore, LiveAdapter
from deployments.engine import Capabilities
from deployments.replica_choice import routers
from deployments.wire import Description

logger = logging.getLogger("ray.serve")

DEPLOYMENT = "Pool"
DESCRIBE_S = 30  # for a pool to say what it is
CALM = 5  # looks are so many times rarer while every pool is up: one costs the controller, and this process, some ms


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool at the last look."""

    ready: bool
    reason: str  # why it isn't ready, in a few words; "running" where it is
    deployed_s: float = 0.0  # when its application was last deployed, in seconds since the epoch
    replicas: int = 0  # that run
    why: str = ""  # it isn't placed, for who operates the cluster; clients aren't told what that has

    def __str__(self) -> str:
        return f"{self.reason}: {self.why}" if self.why else self.reason


FAILING = "failing"  # up, but its answers fail: it is left alone for some seconds
# A replica's states in which Serve sends it requests. It recovers while a controller that has just started finds it.
ANSWERING = ("RUNNING", "RECOVERING", "PENDING_MIGRATION")
NOT_A_POOL = "not a pool"  # an application of another kind, such as the ingress
UNPLACED = "not placed"  # it needs what no node has free
NOT_DEPLOYED = PoolState(False, "not deployed")


class PoolDirectory:
    """Looks at the pools' state in the background, so that a request never waits for the controller."""

    def __init__(
        self, store: AdapterStore | None = None, look_for_unplaced: Callable[[], Mapping[str, str]] = unplaced.look
    ) -> None:
        self.store = store or AdapterStore()
        self._look_for_unplaced = look_for_unplaced
        self._unplaced: Mapping[str, str] = {}
        self.breakers = Breakers()
        self._live: Mapping[str, LiveAdapter] = {}
        self._states: dict[str, PoolState] = {}
        self._handles: dict[str, DeploymentHandle[Any]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._doubt = asyncio.Event()
        self._descriptions: dict[str, tuple[float, Description]] = {}  # with the deployment that gave it
        self._can: dict[str, Capabilities] = {}  # of those that have described themselves
        self._asking: dict[str, asyncio.Task[None]] = {}

    def state(self, pool: str) -> PoolState:
        return self._states.get(pool, NOT_DEPLOYED)

    def view(self, pool: str) -> PoolView:
        """A pool as requests are routed by."""
        state, (_, described) = self.state(pool), self._descriptions.get(pool, (0, None))
        asked = self.breakers.lets_in(pool, time.monotonic())
        return PoolView(
            pool,
            state.ready and asked,
            state.reason if asked else FAILING,
            described["engine"] if described else None,
            self._can.get(pool),
        )

    def handle(self, pool: str) -> DeploymentHandle[Any]:
        """A handle to a pool that was ready at the last look."""
        if pool not in self._handles:
            routers.install()
            self._handles[pool] = serve.get_deployment_handle(DEPLOYMENT, app_name=pool, _check_exists=False)
        return self._handles[pool]

    def document(self, pool: str) -> dict[str, Any]:
        """What is known of a pool, for `/v1/models`. Until it first answers, that is only its state."""
        _, described = self._descriptions.get(pool, (0, None))
        known = {"engine": described["engine"], **described["capabilities"]} if described else {"engine": None}
        return {"pool": pool, "state": self.state(pool).reason, **known}

    def takes_adapters(self, pool: str) -> bool:
        """It is ready, and said that its engine takes some."""
        return self.state(pool).ready and bool(self.document(pool).get("lora"))

    def refuses_adapters(self, pool: str) -> bool:
        """It said, ready or not by now, that its engine takes none."""
        return pool in self._descriptions and not self.document(pool).get("lora")

    def chooses_by_prefix(self, pool: str) -> bool:
        """Whether a replica of it is chosen by the blocks of a request's prompt."""
        _, described = self._descriptions.get(pool, (0, None))
        return described is not None and described.get("replica_choice") == "prefix"

    def adapters(self) -> Mapping[str, list[str]]:
        """The adapters that can be asked for, of configurations and live ones, each with the pools that have it."""
        having = {name: list(adapter.pools) for name, adapter in self._live.items() if adapter.ready}
        for pool, (_, description) in self._descriptions.items():
            for name in description.get("adapters", []) if pool in self._states else ():
                having[name] = [*having.get(name, ()), pool]
        return having

    async def refresh_adapters(self) -> None:
        """Learn of adapters that were loaded or unloaded just now."""
        self._live = await asyncio.to_thread(self.store.read)

    def watch(self, interval_s: Callable[[], float], looked: Callable[[Any], None] = lambda _: None) -> None:
        """Begin to look; the first look is at once. `looked` gets each of Serve's reports."""
        self._looking = asyncio.create_task(self._look_forever(interval_s, looked))

    def look_soon(self) -> None:
        """What was seen last may be wrong."""
        self._doubt.set()

    async def stop(self) -> None:
        for task in filter(None, (self._looking, *self._asking.values())):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _look_forever(self, interval_s: Callable[[], float], looked: Callable[[Any], None]) -> None:
        while True:
            self._doubt.clear()
            try:
                status = await asyncio.to_thread(serve.status)
                looked(status)
                states = read_states(status)
                self._states = await self._with_unplaced(states) if starts(status) else states
                self._ask_new_pools()
                await self.refresh_adapters()
            except Exception as error:
                # The controller restarts now and then; pools serve on without it, so what was seen last stands.
                logger.warning("cannot read the pools' state, keeping the last: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s() * (CALM if self._calm else 1)):
                    await self._doubt.wait()

    async def _with_unplaced(self, states: Mapping[str, PoolState]) -> dict[str, PoolState]:
        """Say which of them have replicas that wait for a node, and for what."""
        found = await asyncio.to_thread(self._look_for_unplaced)
        for name, why in found.items():
            if self._unplaced.get(name) != why:
                logger.warning("a replica of %s isn't placed: %s", name, why)
        self._unplaced = found
        return {
            name: state if state.ready or name not in found else replace(state, reason=UNPLACED, why=found[name])
            for name, state in states.items()
        }

    @property
    def _calm(self) -> bool:
        """Everything is up, and known."""
        return bool(self._states) and all(
            pool in self._descriptions if state.ready else state.reason == NOT_A_POOL
            for pool, state in self._states.items()
        )

    def _ask_new_pools(self) -> None:
        for pool, state in self._states.items():
            known = pool in self._descriptions and self._descriptions[pool][0] == state.deployed_s
            if state.ready and not known and pool not in self._asking:
                self._asking[pool] = asyncio.create_task(self._ask(pool, state.deployed_s))

    async def _ask(self, pool: str, deployed_s: float) -> None:
        """Have a pool describe itself. One that hangs holds up no other; one that fails is asked again."""
        try:
            call: Any = self.handle(pool).describe.remote()
            async with asyncio.timeout(DESCRIBE_S):
                described: Description = await call
            self._descriptions[pool] = (deployed_s, described)
            self._can[pool] = read_capabilities(described["capabilities"])
        except Exception as error:
            logger.warning("pool %s doesn't describe itself: %r", pool, error)
        finally:
            del self._asking[pool]


def read_capabilities(document: Mapping[str, Any]) -> Capabilities:
    """What a pool says that it can; its version may know more, or less, than this one's."""
    known = {each.name: document[each.name] for each in fields(Capabilities) if each.name in document}
    return Capabilities(**{"endpoints": (), **known})


def running_replicas(status: Any, application: str, deployment: str) -> int:
    """How many replicas of a deployment run, from `serve.status()`."""
    found = status.applications.get(application)
    return _answering(found.deployments.get(deployment)) if found else 0


def _answering(deployment: Any) -> int:
    return sum(deployment.replica_states.get(state, 0) for state in ANSWERING) if deployment else 0


def starts(status: Any) -> bool:
    """Whether any replica is starting, from `serve.status()`."""
    deployments = [each for app in status.applications.values() for each in app.deployments.values()]
    return any(each.replica_states.get("STARTING") for each in deployments)


def read_states(status: Any) -> dict[str, PoolState]:
    """Each application's state as a pool, from `serve.status()`."""
    return {name: _read_state(application) for name, application in status.applications.items()}


def _read_state(application: Any) -> PoolState:
    deployed_s = application.last_deployed_time_s
    deployment = application.deployments.get(DEPLOYMENT)
    if deployment is None:
        reason = application.status.value.lower()
        return PoolState(False, NOT_A_POOL if reason == "running" else reason, deployed_s)
    running = _answering(deployment)
    return PoolState(bool(running), "running" if running else deployment.status.value.lower(), deployed_s, running)

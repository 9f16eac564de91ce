"""The policies as Serve's routers. Ray isn't started: requests go the way that Serve's `AsyncioRouter` has them go."""

import asyncio
import itertools
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID, RequestMetadata
from ray.serve._private.config import DeploymentConfig
from ray.serve.config import RequestRouterConfig
from ray.serve.request_router import PendingRequest

from deployments.replica_choice import routers
from deployments.replica_choice.routers import LeastOutstandingRouter, NoReplicaError, PolicyRouter, PrefixRouter

pytestmark = pytest.mark.usefixtures("virtual_time")

POOL = DeploymentID("Pool", "p")
ROUTERS = [LeastOutstandingRouter, PrefixRouter]


@dataclass
class FakeReplica:
    """As much as routers see of a replica. It counts what it has itself."""

    name: str
    max_ongoing_requests: int = 100
    ongoing: int = 0

    @property
    def replica_id(self) -> ReplicaID:
        return ReplicaID(self.name, POOL)

    async def get_queue_len(self, *, deadline_s: float) -> int:
        return self.ongoing


class FakeServe:
    """Sends requests as `AsyncioRouter._route_and_send_request_once` does, one step after the other."""

    def __init__(self, kind: type[PolicyRouter], replicas: Sequence[FakeReplica]) -> None:
        self.replicas = {replica.name: replica for replica in replicas}
        self.router = kind(
            deployment_id=POOL, handle_source=DeploymentHandleSource.REPLICA, use_replica_queue_len_cache=True
        )
        self.router.max_backoff_s = 0.01
        self.router.initialize_state()
        self.update(*self.replicas)
        self._ids = itertools.count()

    def update(self, *names: str) -> None:
        running: Any = [self.replicas[name] for name in names]
        self.router.update_replicas(running)

    @property
    def loads(self) -> list[int]:
        return self.router.policy.loads.of(list(self.replicas), asyncio.get_running_loop().time())

    async def send(self, *args: Any) -> FakeReplica:
        """Which replica took it. It has it until `end`."""
        metadata = RequestMetadata(request_id="r", internal_request_id=str(next(self._ids)))
        request, is_retry = PendingRequest(args=list(args), kwargs={}, metadata=metadata), False
        while True:
            chosen: Any = await self.router._choose_replica_for_request(request, is_retry=is_retry)
            self.router.on_send_request(chosen.replica_id)
            replica: FakeReplica = chosen
            accepts = replica.ongoing < replica.max_ongoing_requests
            replica.ongoing += accepts
            try:
                await asyncio.sleep(0)  # its word comes back
            except asyncio.CancelledError:
                replica.ongoing -= accepts
                self.router.on_request_completed(replica.replica_id, metadata.internal_request_id)
                raise
            self.router.on_new_queue_len_info(replica.replica_id, replica.ongoing)
            if accepts:
                return replica
            self.router.on_request_completed(replica.replica_id, metadata.internal_request_id)
            is_retry = True

    def end(self, replica: FakeReplica) -> None:
        replica.ongoing -= 1
        self.router.on_request_completed(replica.replica_id, "")
        self.router.decrement_queue_len_cache(replica.replica_id)


def serve(kind: type[PolicyRouter], count: int = 3, most: int = 100) -> FakeServe:
    return FakeServe(kind, [FakeReplica(f"replica{index}", most) for index in range(count)])


def wire(*blocks: int) -> dict[str, Any]:
    return {"endpoint": "chat/completions", "prefix": list(blocks)}


@pytest.mark.parametrize("kind", ROUTERS)
async def test_requests_that_come_at_once_are_spread(kind: type[PolicyRouter]) -> None:
    pool = serve(kind)
    await asyncio.sleep(0.01)  # Serve asks new replicas what they have
    await asyncio.gather(*(pool.send(wire(index)) for index in range(30)))
    assert [replica.ongoing for replica in pool.replicas.values()] == pool.loads == [10, 10, 10]


@pytest.mark.parametrize("kind", ROUTERS)
async def test_the_least_loaded_is_next(kind: type[PolicyRouter]) -> None:
    pool = serve(kind)
    taken = [await pool.send() for _ in range(9)]
    pool.end(taken[4])
    assert await pool.send() is taken[4]


async def test_a_prefix_stays_with_its_replica_and_others_go_elsewhere() -> None:
    pool = serve(PrefixRouter)
    first = await pool.send(wire(1, 2, 3))
    assert await pool.send(wire(1, 2, 3, 4)) is first
    assert await pool.send(wire(7, 8)) is not first
    for replica in (first, first):
        pool.end(replica)
    assert await pool.send(wire(1, 2, 3, 4, 5)) is first


async def test_calls_that_are_no_requests_of_clients_find_a_replica() -> None:
    pool = serve(PrefixRouter)
    for arguments in ((), ("name", "path"), ({"endpoint": "score"},)):
        assert (await pool.send(*arguments)).name in pool.replicas


@pytest.mark.parametrize("kind", ROUTERS)
async def test_without_a_replica_requests_are_refused_after_a_moment(
    kind: type[PolicyRouter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routers, "NO_REPLICA_S", 0.1)
    pool = serve(kind, 1, most=1)
    taken = await pool.send()
    waiting = [asyncio.create_task(pool.send(wire(1))) for _ in range(3)]
    await asyncio.sleep(0.02)
    pool.router.on_replica_actor_died(taken.replica_id)
    waiting.append(asyncio.create_task(pool.send(wire(1))))
    await asyncio.sleep(0.02)
    assert not any(task.done() for task in waiting)
    async with asyncio.timeout(60):
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(each) for each in outcomes] == [NoReplicaError] * 4
    with pytest.raises(NoReplicaError):
        await pool.send()
    assert pool.router.num_pending_requests == 0


@pytest.mark.parametrize("kind", ROUTERS)
async def test_a_replica_that_comes_in_time_takes_what_waits(
    kind: type[PolicyRouter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routers, "NO_REPLICA_S", 0.1)
    pool = serve(kind, 2)
    pool.update()
    waiting = [asyncio.create_task(pool.send(wire(1))) for _ in range(3)]
    await asyncio.sleep(0.05)
    pool.update("replica1")
    async with asyncio.timeout(60):
        assert {replica.name for replica in await asyncio.gather(*waiting)} == {"replica1"}
    await asyncio.sleep(0.1)
    assert (await pool.send()).name == "replica1"


@pytest.mark.parametrize("kind", ROUTERS)
async def test_a_full_pool_makes_requests_wait_and_none_is_lost(kind: type[PolicyRouter]) -> None:
    pool = serve(kind, most=2)
    taken = [await pool.send(wire(1)) for _ in range(6)]
    waiting = [asyncio.create_task(pool.send(wire(1))) for _ in range(4)]
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in waiting) and pool.loads == [2, 2, 2]
    for replica in taken[:4]:
        pool.end(replica)
    async with asyncio.timeout(60):
        await asyncio.gather(*waiting)
    assert [replica.ongoing for replica in pool.replicas.values()] == pool.loads == [2, 2, 2]


async def test_a_request_that_waited_for_room_still_gets_what_was_chosen_for_it() -> None:
    """With Serve's FIFOMixin, whichever request is first in the queue would."""
    pool = serve(PrefixRouter, most=2)
    homes = [await pool.send(wire(10 * number, 1)) for number in (1, 2, 3)]
    fillers = [await pool.send() for _ in range(3)]
    assert len({home.name for home in homes}) == 3
    waiting = [asyncio.create_task(pool.send(wire(10 * number, 1))) for number in (1, 2, 3)]
    await asyncio.sleep(0.02)
    for replica in (*homes, *fillers):
        pool.end(replica)
    async with asyncio.timeout(60):
        assert [replica.name for replica in await asyncio.gather(*waiting)] == [home.name for home in homes]


@pytest.mark.parametrize("kind", ROUTERS)
async def test_requests_that_are_cancelled_while_they_wait_leave_nothing(kind: type[PolicyRouter]) -> None:
    pool = serve(kind, most=1)
    taken = [await pool.send() for _ in range(3)]
    waiting = [asyncio.create_task(pool.send(wire(1))) for _ in range(20)]
    await asyncio.sleep(0.03)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for replica in taken:
        pool.end(replica)
    await asyncio.sleep(0)
    assert pool.loads == [0, 0, 0] and not pool.router._chosen


@pytest.mark.parametrize("kind", ROUTERS)
@pytest.mark.parametrize("seed", range(3))
async def test_however_requests_end_no_count_is_left(kind: type[PolicyRouter], seed: int) -> None:
    chance, pool = random.Random(seed), serve(kind, most=5)

    async def client() -> None:
        for _ in range(10):
            replica = await pool.send(wire(chance.randrange(5), 1, 2))
            try:
                await asyncio.sleep(chance.random() * 0.01)
            finally:
                pool.end(replica)

    clients = [asyncio.create_task(client()) for _ in range(40)]
    await asyncio.sleep(0.03)
    for task in chance.sample(clients, 15):
        task.cancel()
    async with asyncio.timeout(30):
        await asyncio.gather(*clients, return_exceptions=True)
    await asyncio.sleep(0)
    assert pool.loads == [0, 0, 0] and not pool.router._chosen


async def test_a_replica_that_died_is_forgotten_with_its_requests() -> None:
    pool = serve(PrefixRouter)
    first = await pool.send(wire(1, 2, 3))
    pool.router.on_replica_actor_died(first.replica_id)
    other = await pool.send(wire(1, 2, 3))
    assert other is not first and pool.loads[list(pool.replicas).index(first.name)] == 0
    pool.end(first)  # late
    assert sum(pool.loads) == 1


async def test_a_replica_that_is_removed_gets_nothing_and_a_new_one_does() -> None:
    pool = serve(LeastOutstandingRouter, 2)
    pool.replicas["late"] = FakeReplica("late")
    pool.update("replica1", "late")
    assert sorted([(await pool.send()).name for _ in range(4)]) == ["late", "late", "replica1", "replica1"]


async def test_what_other_processes_send_counts_once_a_replica_says_so() -> None:
    pool = serve(LeastOutstandingRouter, 2)
    busy = pool.replicas["replica0"]
    busy.ongoing = 10  # from elsewhere
    for _ in range(2):
        await pool.send()
    assert {(await pool.send()).name for _ in range(5)} == {"replica1"}


def test_serve_makes_them_for_pools_and_its_own_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a config that has been through the controller, where a class would be lost."""
    monkeypatch.setattr(RequestRouterConfig, "get_request_router_class", RequestRouterConfig.get_request_router_class)
    configs = [
        DeploymentConfig(request_router_config=RequestRouterConfig.model_validate({"request_router_kwargs": settings}))
        for settings in ({"replica_choice": "prefix", "memory": 7}, {"replica_choice": "least_outstanding"}, {})
    ]
    routers.install()
    routers.install()
    found = []
    for config in configs:
        overridden: Any = DeploymentConfig(**config.model_dump())
        there = DeploymentConfig.from_proto_bytes(overridden.to_proto_bytes())
        found.append(there.request_router_config.get_request_router_class().__name__)
    assert found == ["PrefixRouter", "LeastOutstandingRouter", "PowerOfTwoChoicesRequestRouter"]


def test_what_the_ingress_imports_for_it_is_light() -> None:
    code = (
        "import json, sys, ray.serve, ray.serve.request_router; before = set(sys.modules);"
        "import deployments.replica_choice.routers, deployments.replica_choice.prefix;"
        "print(json.dumps(sorted(name.partition('.')[0] for name in set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert set(json.loads(done.stdout)) <= {
        "deployments",
        "pydantic",
        "pydantic_core",
        "_blake2",
        "hashlib",
        "_hashlib",
    }

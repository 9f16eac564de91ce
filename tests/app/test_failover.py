"""What the ingress does when a pool fails a request before the first byte of its answer."""

import asyncio
from typing import Any

import httpx
import pytest
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError

from app.config import IngressConfig
from app.gateway import Gateway
from app.pools import PoolState
from app.routing.decide import PoolView
from deployments.plane.hub import StreamLostError
from deployments.replica_choice.routers import NoReplicaError
from deployments.wire import WireResponse
from tests.app.test_ingress import HEAD, RUNNING, WHOLE, FakeHandle, FakePools

pytestmark = pytest.mark.usefixtures("virtual_time")

CHAT = "/v1/chat/completions"
LOST = RayActorError(error_msg="gone")
FULL = BackPressureError(10, 10)
NONE = NoReplicaError("none")


def config(**more: Any) -> IngressConfig:
    return IngressConfig.model_validate({"models": {"m": {"pools": ["a", "b", "c"]}}, **more})


def whole(status: int) -> WireResponse:
    return {**WHOLE, "status": status, "body": b'{"error": {"message": "the pool\'s own"}}'}


class Pools(FakePools):
    """Three, with breakers."""

    def __init__(self) -> None:
        super().__init__()
        self.states = dict.fromkeys("abc", RUNNING)
        self.engines = dict.fromkeys("abc", "toy")
        self.handles = {name: FakeHandle(WHOLE) for name in "abc"}

    def view(self, pool: str) -> PoolView:
        ready = self.breakers.lets_in(pool, asyncio.get_running_loop().time())
        return PoolView(pool, ready, "running" if ready else "failing", "toy")

    def fail(self, *items: Any, pools: str = "a") -> None:
        for pool in pools:
            self.handles[pool].items = items

    @property
    def asked(self) -> dict[str, int]:
        return {name: len(handle.asked) for name, handle in self.handles.items() if handle.asked}


@pytest.fixture
def pools() -> Pools:
    return Pools()


@pytest.fixture
def gateway(pools: Pools) -> Gateway:
    gateway = Gateway(pools)
    gateway.configure(config())
    return gateway


async def ask(client: httpx.AsyncClient, stream: bool = False) -> httpx.Response:
    return await client.post(CHAT, json={"model": "m", "stream": stream})


def came_from(answer: httpx.Response) -> tuple[int, str, str]:
    return answer.status_code, answer.headers["x-enginehouse-pool"], answer.headers["x-enginehouse-attempts"]


async def test_where_no_pool_has_a_replica_clients_are_told_when_to_come_back(
    client: httpx.AsyncClient, pools: Pools
) -> None:
    pools.fail(NONE, pools="abc")
    answer = await ask(client)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "pool_not_ready"
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    "failure", [LOST, StreamLostError("cut"), whole(502), whole(503), whole(504), whole(429), FULL, NONE]
)
async def test_the_next_pool_answers(client: httpx.AsyncClient, pools: Pools, failure: Any) -> None:
    pools.fail(failure)
    answer = await ask(client)
    assert came_from(answer) == (200, "b", "2")
    assert answer.json() == {"id": "1"}
    assert pools.asked == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    "first", [(LOST,), ({**HEAD, "status": 503}, b"no"), ({**HEAD, "status": 429}, b"no"), (FULL,)]
)
async def test_the_next_pool_streams(client: httpx.AsyncClient, pools: Pools, first: tuple[Any, ...]) -> None:
    pools.fail(*first)
    pools.fail(HEAD, b"data: 1\n\n", b"data: [DONE]\n\n", pools="b")
    answer = await ask(client, stream=True)
    assert came_from(answer) == (200, "b", "2")
    assert answer.text == "data: 1\n\ndata: [DONE]\n\n"


async def test_after_the_first_byte_nothing_is_tried_again(client: httpx.AsyncClient, pools: Pools) -> None:
    pools.fail(HEAD, b"data: 1\n\n", LOST)
    answer = await ask(client, stream=True)
    assert came_from(answer) == (200, "a", "1")
    assert '"code": "engine_lost"' in answer.text and "[DONE]" not in answer.text
    assert pools.asked == {"a": 1}


@pytest.mark.parametrize("failure", [whole(400), whole(404), whole(500), ValueError("a fault of the ingress")])
async def test_what_another_pool_would_answer_too_is_not_tried_again(
    client: httpx.AsyncClient, pools: Pools, failure: Any
) -> None:
    pools.fail(failure)
    assert (await ask(client)).status_code in (400, 404, 500)
    assert pools.asked == {"a": 1}


async def test_attempts_are_bounded(client: httpx.AsyncClient, gateway: Gateway, pools: Pools) -> None:
    gateway.configure(config(resilience={"max_attempts": 2}))
    pools.fail(LOST, pools="abc")
    answer = await ask(client)
    assert came_from(answer) == (503, "b", "2")
    assert answer.json()["error"]["code"] == "replica_lost"
    assert pools.asked == {"a": 1, "b": 1}


async def test_a_full_pool_is_no_attempt(client: httpx.AsyncClient, gateway: Gateway, pools: Pools) -> None:
    gateway.configure(config(resilience={"max_attempts": 1}))
    pools.fail(FULL, pools="ab")
    assert came_from(await ask(client)) == (200, "c", "3")


async def test_the_last_answer_is_the_pool_s_own(client: httpx.AsyncClient, pools: Pools) -> None:
    pools.fail(whole(503), pools="abc")
    answer = await ask(client)
    assert came_from(answer) == (503, "c", "3")
    assert answer.json()["error"]["message"] == "the pool's own"


async def test_a_pool_of_several_replicas_is_asked_again(client: httpx.AsyncClient, gateway: Gateway) -> None:
    pools = gateway.pools
    assert isinstance(pools, Pools)
    gateway.configure(IngressConfig.model_validate({"models": {"m": {"pools": ["a"]}}}))
    pools.fail(LOST)
    assert came_from(await ask(client)) == (503, "a", "1")
    pools.states["a"] = PoolState(True, "running", replicas=2)
    assert came_from(await ask(client)) == (503, "a", "2")
    ids = [wire["request_id"] for _, wire in pools.handles["a"].asked]
    assert len(set(ids)) == 3  # an engine that has the first still would refuse the same again


async def test_limits_are_given_back_and_taken_again(client: httpx.AsyncClient, gateway: Gateway, pools: Pools) -> None:
    limit = {"max_concurrent": 1, "max_queued": 0}
    gateway.configure(config(admission={"pools": {"a": limit, "b": limit}}))
    pools.fail(LOST)
    for _ in range(3):
        assert came_from(await ask(client)) == (200, "b", "2")
    pools.fail(LOST, pools="bc")
    assert (await ask(client)).status_code == 503
    assert [gateway.gate._pools[name].budget.running for name in "abc"] == [0, 0, 0]


@pytest.mark.parametrize(("stream", "limit"), [(True, "first_token"), (True, "total"), (False, "total")])
async def test_a_pool_that_hangs_is_left_alone(
    client: httpx.AsyncClient, gateway: Gateway, pools: Pools, stream: bool, limit: str
) -> None:
    breaker = {"window": 4, "min_failures": 2, "open_s": 0.2}
    timeouts = {f"{limit}_s": 0.05}
    gateway.configure(config(resilience={"breaker": breaker}, admission={"timeouts": timeouts}))
    never = asyncio.Event()
    pools.fail(never)
    for _ in range(2):
        answer = await ask(client, stream=stream)
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, f"{limit}_timeout")
    answers: tuple[Any, ...] = (HEAD, b"data: [DONE]\n\n") if stream else (WHOLE,)
    pools.fail(*answers, pools="b")
    for _ in range(3):  # the others go on
        answer = await ask(client, stream=stream)
        assert came_from(answer) == (200, "b", "1")
        assert "1 passed over" in answer.headers["x-enginehouse-reason"]
    await asyncio.sleep(0.25)
    assert (await ask(client, stream=stream)).status_code == 504  # the one that tries it
    assert came_from(await ask(client, stream=stream)) == (200, "b", "1")
    pools.fail(*answers)
    await asyncio.sleep(0.45)
    for _ in range(2):
        assert came_from(await ask(client, stream=stream)) == (200, "a", "1")


async def test_one_that_hangs_after_it_has_begun_too(client: httpx.AsyncClient, gateway: Gateway, pools: Pools) -> None:
    breaker = {"window": 4, "min_failures": 2, "open_s": 10}
    timeouts = {"between_tokens_s": 0.05}
    gateway.configure(config(resilience={"breaker": breaker}, admission={"timeouts": timeouts}))
    pools.fail(HEAD, b"data: 1\n\n", asyncio.Event())
    for _ in range(2):
        assert '"code": "between_tokens_timeout"' in (await ask(client, stream=True)).text
    assert pools.view("a").state == "failing"


async def test_lost_replicas_are_serve_s_to_take_out(client: httpx.AsyncClient, pools: Pools) -> None:
    pools.fail(LOST)
    for _ in range(30):
        assert came_from(await ask(client)) == (200, "b", "2")
    assert pools.asked["a"] == 30


async def test_nobody_waits_for_one_that_is_tried(client: httpx.AsyncClient, gateway: Gateway, pools: Pools) -> None:
    gateway.configure(config(resilience={"breaker": {"window": 1, "min_failures": 1, "open_s": 0.01}}))
    pools.fail(whole(503))
    await ask(client)
    await asyncio.sleep(0.02)
    waits = asyncio.Event()
    pools.fail(waits, WHOLE)
    probe = asyncio.create_task(ask(client))
    await pools.handles["a"].waits.wait()
    assert came_from(await ask(client)) == (200, "b", "1")
    waits.set()
    assert came_from(await probe) == (200, "a", "1")
    assert came_from(await ask(client)) == (200, "a", "1")


async def test_a_model_whose_pools_all_fail(client: httpx.AsyncClient, gateway: Gateway, pools: Pools) -> None:
    gateway.configure(config(resilience={"breaker": {"window": 1, "min_failures": 1}}))
    pools.fail(whole(503), pools="abc")
    await ask(client)
    answer = await ask(client)
    assert answer.status_code == 503 and "retry-after" in answer.headers
    assert (
        answer.json()["error"]["message"] == "No pool of 'm' is ready: 'a' is failing, 'b' is failing, 'c' is failing."
    )

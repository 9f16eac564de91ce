"""Which pools are up, as read from `serve.status()`; Ray itself isn't started."""

import asyncio
from typing import Any, ClassVar

import pytest
from ray import serve
from ray.serve._private.common import DeploymentStatus, DeploymentStatusTrigger, ReplicaState
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview, DeploymentStatusOverview, ServeStatus

from app.pools import NOT_DEPLOYED, PoolDirectory, PoolState, read_capabilities, read_states
from app.routing.decide import PoolView
from deployments.adapter_store import AdapterStore, LiveAdapter
from deployments.wire import Description
from tests.waiting import until

RUNNING = PoolState(True, "running", replicas=1)
DESCRIPTION: Description = {"engine": "toy", "capabilities": {"n": True}}


class FakePool:
    """A handle, which answers `describe` with each of `answers` in turn; the last one stays."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.describe = self

    async def remote(self) -> Description:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, asyncio.Event):
            await answer.wait()
        described: Description = answer
        return described


@pytest.fixture(autouse=True)
def handles(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakePool]:
    """The pools' handles, by name."""
    made: dict[str, FakePool] = {}

    def make(name: str, app_name: str, _check_exists: bool) -> Any:
        return made.setdefault(app_name, FakePool(DESCRIPTION))

    monkeypatch.setattr(serve, "get_deployment_handle", make)
    return made


def deployment(status: DeploymentStatus, **replicas: int) -> DeploymentStatusOverview:
    states = {ReplicaState(name): count for name, count in replicas.items()}
    return DeploymentStatusOverview(status, DeploymentStatusTrigger.UNSPECIFIED, states, "")


def application(status: ApplicationStatus, **deployments: DeploymentStatusOverview) -> ApplicationStatusOverview:
    return ApplicationStatusOverview(status, "", 0.0, deployments)


def up(name: str = "a", replicas: int = 1) -> ServeStatus:
    pool = deployment(DeploymentStatus.HEALTHY, RUNNING=replicas)
    return ServeStatus(applications={name: application(ApplicationStatus.RUNNING, Pool=pool)})


def every_millisecond() -> float:
    return 0.001


@pytest.mark.parametrize(
    ("seen", "state"),
    [
        (
            application(ApplicationStatus.RUNNING, Pool=deployment(DeploymentStatus.HEALTHY, RUNNING=2)),
            PoolState(True, "running", replicas=2),
        ),
        (  # An update, or one dead replica of several: what runs can answer.
            application(ApplicationStatus.DEPLOYING, Pool=deployment(DeploymentStatus.UPDATING, RUNNING=1, STARTING=1)),
            RUNNING,
        ),
        (
            application(ApplicationStatus.UNHEALTHY, Pool=deployment(DeploymentStatus.UNHEALTHY, RUNNING=1)),
            RUNNING,
        ),
        (  # A controller that has just started finds the replicas again; they have answered all along.
            application(ApplicationStatus.DEPLOYING, Pool=deployment(DeploymentStatus.UPDATING, RECOVERING=2)),
            PoolState(True, "running", replicas=2),
        ),
        (
            application(ApplicationStatus.RUNNING, Pool=deployment(DeploymentStatus.UPDATING, PENDING_MIGRATION=1)),
            RUNNING,
        ),
        (
            application(ApplicationStatus.DEPLOYING, Pool=deployment(DeploymentStatus.UPDATING, STARTING=1)),
            PoolState(False, "updating"),
        ),
        (
            application(ApplicationStatus.DEPLOY_FAILED, Pool=deployment(DeploymentStatus.DEPLOY_FAILED)),
            PoolState(False, "deploy_failed"),
        ),
        (
            application(ApplicationStatus.RUNNING, Pool=deployment(DeploymentStatus.UNHEALTHY, RUNNING=0, STOPPING=1)),
            PoolState(False, "unhealthy"),
        ),
        (application(ApplicationStatus.DEPLOYING), PoolState(False, "deploying")),
        (
            application(ApplicationStatus.RUNNING, Other=deployment(DeploymentStatus.HEALTHY, RUNNING=1)),
            PoolState(False, "not a pool"),
        ),
    ],
)
def test_the_state_of_a_pool(seen: ApplicationStatusOverview, state: PoolState) -> None:
    assert read_states(ServeStatus(applications={"a": seen})) == {"a": state}


def test_a_pool_that_is_absent() -> None:
    assert read_states(ServeStatus()) == {}
    assert PoolDirectory().state("a") == NOT_DEPLOYED == PoolState(False, "not deployed")


async def test_a_pool_as_it_is_routed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "status", lambda: ServeStatus(applications=up("b").applications))
    pools = PoolDirectory()
    assert pools.view("b") == PoolView("b", False, "not deployed")
    pools.watch(every_millisecond)
    await until(lambda: pools.view("b").engine is not None)
    assert (pools.view("b").ready, pools.view("b").state, pools.view("b").engine) == (True, "running", "toy")
    assert pools.view("b").can is not None
    assert pools.view("a") == PoolView("a", False, "not deployed")
    await pools.stop()


def test_what_a_pool_says_that_it_can() -> None:
    can = read_capabilities({"endpoints": ["completions"], "n": True, "of_a_later_version": 1})
    assert (can.n, can.logprobs, list(can.endpoints)) == (True, False, ["completions"])
    assert read_capabilities({}).endpoints == ()


async def test_each_look_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [up()]
    monkeypatch.setattr(serve, "status", lambda: seen[0])
    pools = PoolDirectory()
    pools.watch(every_millisecond)
    await until(lambda: pools.state("a") == RUNNING)
    seen[0] = up(replicas=0)
    await until(lambda: pools.state("a") == PoolState(False, "healthy"))
    seen[0] = ServeStatus()
    await until(lambda: pools.state("a") == NOT_DEPLOYED)
    await pools.stop()


async def test_the_last_state_stands_while_the_controller_is_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looks = 0

    def status() -> ServeStatus:
        nonlocal looks
        looks += 1
        if looks in (2, 3):
            raise RuntimeError("the controller restarts")
        return up(replicas=1 if looks == 1 else 0)

    states: list[PoolState] = []
    pools = PoolDirectory()

    def interval() -> float:
        states.append(pools.state("a"))
        return 0

    monkeypatch.setattr(serve, "status", status)
    pools.watch(interval)
    await until(lambda: len(states) >= 4)
    await pools.stop()
    assert states[:4] == [RUNNING, RUNNING, RUNNING, PoolState(False, "healthy")]
    assert caplog.messages == ["cannot read the pools' state, keeping the last: the controller restarts"] * 2


async def test_stop_ends_the_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def status() -> ServeStatus:
        nonlocal looks
        looks += 1
        return up()

    monkeypatch.setattr(serve, "status", status)
    pools = PoolDirectory()
    await pools.stop()  # before any look: nothing to do
    pools.watch(every_millisecond)
    await until(lambda: looks > 0)
    await pools.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    before = looks
    await asyncio.sleep(0.05)  # in which looks would come
    assert looks == before
    await pools.stop()


async def test_a_pool_that_runs_describes_itself_once_a_deployment(
    monkeypatch: pytest.MonkeyPatch, handles: dict[str, FakePool]
) -> None:
    seen = [up(replicas=0)]
    monkeypatch.setattr(serve, "status", lambda: seen[0])
    other: Description = {"engine": "other", "capabilities": {}}
    handles["a"] = FakePool(DESCRIPTION, other)
    pools = PoolDirectory()
    pools.watch(every_millisecond)
    await until(lambda: pools.state("a") == PoolState(False, "healthy"))
    assert pools.document("a") == {"pool": "a", "state": "healthy", "engine": None}
    seen[0] = up()
    await until(lambda: pools.document("a") == {"pool": "a", "state": "running", "engine": "toy", "n": True})
    await asyncio.sleep(0.02)  # in which it would be asked again
    assert handles["a"].asked == 1
    again = up()
    again.applications["a"].last_deployed_time_s = 9.0
    seen[0] = again
    await until(lambda: pools.document("a")["engine"] == "other")
    await pools.stop()


async def test_a_pool_that_cannot_describe_itself_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, handles: dict[str, FakePool], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serve, "status", up)
    handles["a"] = FakePool(RuntimeError("lost"), DESCRIPTION)
    pools = PoolDirectory()
    pools.watch(every_millisecond)
    await until(lambda: pools.document("a")["engine"] == "toy")
    await pools.stop()
    assert caplog.messages == ["pool a doesn't describe itself: RuntimeError('lost')"]


async def test_a_pool_that_hangs_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, handles: dict[str, FakePool]
) -> None:
    monkeypatch.setattr(serve, "status", lambda: ServeStatus(applications=up("a").applications | up("b").applications))
    handles["a"] = FakePool(asyncio.Event())
    pools = PoolDirectory()
    pools.watch(every_millisecond)
    await until(lambda: pools.document("b")["engine"] == "toy")
    assert handles["a"].asked == 1
    await pools.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_adapters_of_configurations_and_live_ones(
    monkeypatch: pytest.MonkeyPatch, handles: dict[str, FakePool]
) -> None:
    class Store(AdapterStore):
        kept: ClassVar[dict[str, LiveAdapter]] = {}

        def read(self) -> dict[str, LiveAdapter]:
            return dict(self.kept)

    monkeypatch.setattr(serve, "status", lambda: ServeStatus(applications=up("a").applications | up("b").applications))
    handles["a"] = FakePool({"engine": "toy", "capabilities": {"lora": True}, "adapters": ["own"]})
    pools = PoolDirectory(Store())
    assert not pools.takes_adapters("a") and not pools.refuses_adapters("a")  # it is not known yet
    pools.watch(every_millisecond)
    await until(lambda: pools.takes_adapters("a") and pools.refuses_adapters("b"))
    assert not pools.refuses_adapters("a") and not pools.takes_adapters("b")
    assert pools.adapters() == {"own": ["a"]}
    Store.kept["x"] = LiveAdapter(path="p", model="m", pools=("a",))
    Store.kept["y"] = Store.kept["x"].model_copy(update={"ready": True})
    await until(lambda: pools.adapters() == {"own": ["a"], "y": ["a"]})
    monkeypatch.setattr(serve, "status", lambda: up("b"))
    Store.kept.clear()
    await until(lambda: pools.adapters() == {})
    await pools.stop()


def test_a_handle_is_made_once_for_each_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, str]] = []

    def make(name: str, app_name: str, _check_exists: bool) -> Any:
        assert not _check_exists  # that would ask the controller, while a request waits
        made.append((name, app_name))
        return object()

    monkeypatch.setattr(serve, "get_deployment_handle", make)
    pools = PoolDirectory()
    assert pools.handle("a") is pools.handle("a")
    assert pools.handle("a") is not pools.handle("b")
    assert made == [("Pool", "a"), ("Pool", "b")]


async def test_looks_are_rare_while_all_is_up_and_soon_when_there_is_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def status() -> ServeStatus:
        nonlocal looks
        looks += 1
        return up()

    monkeypatch.setattr(serve, "status", status)
    monkeypatch.setattr("app.pools.CALM", 10**6)
    pools = PoolDirectory()
    pools.watch(every_millisecond)
    await until(lambda: pools._calm)
    await asyncio.sleep(0.02)  # for the look that began before it was known what the pool is
    seen = looks
    await asyncio.sleep(0.05)  # in which looks would come
    assert looks == seen
    pools.look_soon()
    await until(lambda: looks == seen + 1)
    await pools.stop()


async def test_whether_a_pool_chooses_by_prefix(monkeypatch: pytest.MonkeyPatch, handles: dict[str, FakePool]) -> None:
    monkeypatch.setattr(serve, "status", lambda: ServeStatus(applications=up("a").applications | up("b").applications))
    handles["a"] = FakePool({**DESCRIPTION, "replica_choice": "prefix"})
    handles["b"] = FakePool(DESCRIPTION)  # of an older version
    pools = PoolDirectory()
    assert not pools.chooses_by_prefix("a")  # it is not known yet
    pools.watch(every_millisecond)
    await until(lambda: pools.document("a")["engine"] is not None and pools.document("b")["engine"] is not None)
    assert pools.chooses_by_prefix("a") and not pools.chooses_by_prefix("b")
    await pools.stop()

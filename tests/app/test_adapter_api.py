"""Loading and unloading adapters through the ingress, over pools and a store that are stand-ins."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from ray.exceptions import RayActorError
from ray.serve.handle import DeploymentHandle

from app import adapter_api
from app.adapter_api import Target, choose_target
from app.config import IngressConfig
from app.gateway import Gateway
from app.pools import PoolDirectory, PoolState
from deployments.adapter_store import AdapterStore, LiveAdapter
from deployments.errors import ApiError
from deployments.wire import Description, WireRequest, WireResponse
from tests.waiting import until

CONFIG = IngressConfig.model_validate(
    {"models": {"m": {"pools": ["a", "b"]}, "n": {"pools": ["c"]}, "alias": {"pools": ["b"]}}}
)
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
REFUSAL = {"message": "There is no folder 'p'.", "param": "lora_path", "code": "invalid_adapter"}


class FakeStore(AdapterStore):
    def __init__(self) -> None:
        self.kept: dict[str, LiveAdapter] = {}

    def read(self) -> Mapping[str, LiveAdapter]:
        return dict(self.kept)

    def claim(self, name: str, adapter: LiveAdapter) -> bool:
        return self.kept.setdefault(name, adapter) is adapter

    def replace(self, name: str, adapter: LiveAdapter) -> None:
        self.kept[name] = adapter

    def remove(self, name: str) -> None:
        self.kept.pop(name, None)


@dataclass
class FakePool:
    """A pool's handle. Each method's answers, one a replica; what was called, with what the store held then."""

    store: FakeStore
    check_adapter: list[Any] = field(default_factory=lambda: [None, None])
    update_adapters: list[Any] = field(default_factory=lambda: [{}, {}])
    called: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    held: list[dict[str, bool]] = field(default_factory=list)
    asked: list[WireRequest] = field(default_factory=list)
    gate: asyncio.Event | None = None  # what each answer waits for

    def broadcast(self, method: str, *arguments: str) -> "FakeCall":
        self.called.append((method, arguments))
        self.held.append({name: adapter.ready for name, adapter in self.store.kept.items()})
        return FakeCall(getattr(self, method), self.gate)

    @property
    def respond(self) -> "FakePool":
        return self

    async def remote(self, wire: WireRequest) -> WireResponse:
        self.asked.append(wire)
        return {"status": 200, "media_type": "application/json", "headers": {}, "body": b"{}"}


@dataclass
class FakeCall:
    answers: list[Any]
    gate: asyncio.Event | None

    async def results_async(self, *, timeout_s: float) -> list[Any]:
        assert timeout_s > 0
        if self.gate is not None:
            await self.gate.wait()
        for answer in self.answers:
            if isinstance(answer, Exception):
                raise answer
        return self.answers


class FakePools(PoolDirectory):
    """`a` and `b` take adapters; `c` doesn't."""

    def __init__(self) -> None:
        self.fakes = FakeStore()
        super().__init__(self.fakes)
        self.handles = {name: FakePool(self.fakes) for name in "abc"}
        self._states = dict.fromkeys("abc", PoolState(True, "running"))
        for name in "abc":
            self.describe(name, lora=name != "c")

    def describe(self, name: str, *, lora: bool, adapters: tuple[str, ...] = ()) -> None:
        description: Description = {"engine": "fake", "capabilities": {"lora": lora}, "adapters": list(adapters)}
        self._descriptions[name] = (0.0, description)

    def down(self, *names: str) -> None:
        self._states |= dict.fromkeys(names, PoolState(False, "updating"))

    def forget(self, name: str) -> None:
        del self._descriptions[name]

    def handle(self, pool: str) -> DeploymentHandle[Any]:
        handle: Any = self.handles[pool]
        return handle  # type: ignore[no-any-return]


@pytest.fixture
def pools() -> FakePools:
    return FakePools()


@pytest.fixture
def gateway(pools: FakePools) -> Gateway:
    gateway = Gateway(pools)
    gateway.config = CONFIG
    return gateway


async def load(client: httpx.AsyncClient, **changed: Any) -> httpx.Response:
    body = {"lora_name": "x", "lora_path": "p", "model": "m", **changed}
    return await client.post(LOAD, json={name: value for name, value in body.items() if value is not None})


def error_of(response: httpx.Response) -> tuple[int, str | None, str | None, str]:
    error = response.json()["error"]
    return response.status_code, error["param"], error["code"], error["message"]


# Loading


async def test_load(client: httpx.AsyncClient, pools: FakePools) -> None:
    response = await load(client)
    assert response.status_code == 200
    assert response.json() == {"id": "x", "object": "model", "parent": "m", "pools": ["a", "b"]}
    for name in "ab":
        # Checked before the name is claimed, done before it is shown.
        assert pools.handles[name].called == [("check_adapter", ("x", "p")), ("update_adapters", ())]
        assert pools.handles[name].held == [{}, {"x": False}]
    assert pools.handles["c"].called == []
    assert pools.fakes.kept == {"x": LiveAdapter(path="p", model="m", pools=("a", "b"), ready=True)}


async def test_what_is_loaded_is_a_model(client: httpx.AsyncClient, pools: FakePools) -> None:
    await load(client)
    listed = {document["id"]: document for document in (await client.get("/v1/models")).json()["data"]}
    assert list(listed) == ["alias", "m", "n", "x"]
    assert (listed["x"]["parent"], listed["x"]["root"]) == ("m", "m")
    assert "parent" not in listed["m"]
    assert (await client.get("/v1/models/x")).json() == listed["x"]
    pools.down("a")
    for model, adapter in (("x", "x"), ("m", None)):
        response = await client.post("/v1/completions", json={"model": model})
        assert (response.status_code, response.headers["x-enginehouse-pool"]) == (200, "b")
        assert pools.handles["b"].asked[-1]["adapter"] == adapter


@pytest.mark.parametrize("pool", ["a", "b"])
async def test_one_replica_s_refusal_is_everyone_s(client: httpx.AsyncClient, pools: FakePools, pool: str) -> None:
    pools.handles[pool].check_adapter = [None, REFUSAL]
    assert error_of(await load(client)) == (400, "lora_path", "invalid_adapter", "There is no folder 'p'.")
    assert pools.fakes.kept == {}
    assert all(method != "update_adapters" for handle in pools.handles.values() for method, _ in handle.called)


@pytest.mark.parametrize("pool", ["a", "b"])
async def test_what_fails_on_one_replica_is_taken_back_everywhere(
    client: httpx.AsyncClient, pools: FakePools, pool: str
) -> None:
    pools.handles[pool].update_adapters = [{}, {"x": "No memory.", "other": "Not mine."}]
    expected = (400, "lora_path", "invalid_adapter", f"The pool '{pool}': No memory.")
    assert error_of(await load(client)) == expected
    assert pools.fakes.kept == {}
    for name in "ab":
        assert [method for method, _ in pools.handles[name].called][-1] == "update_adapters"
        assert pools.handles[name].held == [{}, {"x": False}, {}]
    assert (await client.get("/v1/models/x")).status_code == 404


async def test_another_adapter_s_failure_is_not_this_one_s(client: httpx.AsyncClient, pools: FakePools) -> None:
    pools.handles["a"].update_adapters = [{"other": "Not mine."}]
    assert (await load(client)).status_code == 200


@pytest.mark.parametrize("method", ["check_adapter", "update_adapters"])
@pytest.mark.parametrize("error", [RayActorError(error_msg="secret"), TimeoutError("secret")])
async def test_a_replica_that_is_lost(
    client: httpx.AsyncClient, pools: FakePools, method: str, error: Exception
) -> None:
    setattr(pools.handles["b"], method, [error])
    response = await load(client)
    expected = (503, None, "replica_lost", "Not every replica of the pool 'b' answered.")
    assert error_of(response) == expected
    assert response.headers["retry-after"] == "5"
    assert pools.fakes.kept == {}


async def test_two_at_once_by_two_ingresses(client: httpx.AsyncClient, pools: FakePools) -> None:
    pools.handles["a"].gate = asyncio.Event()
    first, second = asyncio.create_task(load(client)), asyncio.create_task(load(client, lora_path="q"))
    await until(lambda: len(pools.handles["a"].called) == 2)
    pools.handles["a"].gate.set()
    statuses = sorted([(await first).status_code, (await second).status_code])
    assert statuses == [200, 400]
    assert list(pools.fakes.kept) == ["x"] and pools.fakes.kept["x"].ready


async def test_a_client_that_leaves_does_not_stop_it_half_done(client: httpx.AsyncClient, pools: FakePools) -> None:
    pools.handles["a"].gate = asyncio.Event()
    request = asyncio.create_task(load(client))
    await until(lambda: bool(pools.handles["a"].called))
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    pools.handles["a"].gate.set()
    await asyncio.gather(*adapter_api._running)
    assert pools.fakes.kept["x"].ready


@pytest.mark.parametrize("name", ["m", "alias", "listed", "live"])
async def test_a_name_that_is_taken(client: httpx.AsyncClient, pools: FakePools, name: str) -> None:
    pools.describe("c", lora=True, adapters=("listed",))
    pools.fakes.kept["live"] = LiveAdapter(path="q", model="n", pools=("c",), ready=True)
    status, param, code, message = error_of(await load(client, lora_name=name))
    assert (status, param, code) == (400, "lora_name", "name_taken")
    assert message.startswith(f"'{name}' is the name of a model or an adapter already")
    assert all(handle.called == [] for handle in pools.handles.values())


@pytest.mark.parametrize(
    ("changed", "param", "code"),
    [
        ({"lora_name": None}, "lora_name", "missing_parameter"),
        ({"lora_path": None}, "lora_path", "missing_parameter"),
        ({"lora_name": ""}, "lora_name", "invalid_value"),
        ({"lora_name": "a b"}, "lora_name", "invalid_value"),
        ({"lora_name": 1}, "lora_name", "invalid_value"),
        ({"lora_path": ""}, "lora_path", "invalid_value"),
        ({"lora_path": "x" * 5000}, "lora_path", "invalid_value"),
        ({"lora_path": "a\0b"}, "lora_path", "invalid_value"),
        ({"lora_path": "a\nERROR: forged"}, "lora_path", "invalid_value"),
        ({"lora_path": "a\x1b[2J"}, "lora_path", "invalid_value"),
        ({"lora_name": "x\n"}, "lora_name", "invalid_value"),
        ({"lora_name": "\nx"}, "lora_name", "invalid_value"),
        ({"lora_name": "x\0"}, "lora_name", "invalid_value"),
        ({"lora_name": "../x"}, "lora_name", "invalid_value"),
        ({"lora_name": "/x"}, "lora_name", "invalid_value"),
        ({"lora_name": "\N{GRINNING FACE}"}, "lora_name", "invalid_value"),
        ({"lora_name": "x%2e%2e"}, "lora_name", "invalid_value"),
        ({"lora_name": "__proto__"}, "lora_name", "invalid_value"),
        ({"lora_name": "x" * 201}, "lora_name", "invalid_value"),
        ({"lora_paht": "p"}, "lora_paht", "unknown_parameter"),
        ({"load_inplace": True}, "load_inplace", "unknown_parameter"),
    ],
)
async def test_a_body_that_is_not_right(
    client: httpx.AsyncClient, pools: FakePools, changed: dict[str, Any], param: str, code: str
) -> None:
    assert error_of(await load(client, **changed))[:3] == (400, param, code)
    assert all(handle.called == [] for handle in pools.handles.values())


async def test_a_misspelt_key_is_named(client: httpx.AsyncClient) -> None:
    assert error_of(await load(client, lora_paht="p"))[3] == "Unknown parameter 'lora_paht'; did you mean 'lora_path'?"


async def test_a_body_that_is_too_large(client: httpx.AsyncClient, gateway: Gateway) -> None:
    gateway.config = CONFIG.model_copy(update={"max_body_bytes": 1024})
    assert (await load(client, lora_path="x" * 2000)).status_code == 413


# Where to


def test_the_pools_of_a_model(pools: FakePools) -> None:
    assert choose_target("m", CONFIG.models, pools) == Target("m", ("a", "b"))
    pools.down("a")
    assert choose_target("m", CONFIG.models, pools) == Target("m", ("b",))
    pools.down("b")
    assert choose_target("m", CONFIG.models, pools) is None


@pytest.mark.parametrize(
    ("model", "status", "words"),
    [("nope", 404, "does not exist"), ("n", 400, "No pool of 'n' takes adapters."), (None, 400, "There are: m, n.")],
)
def test_a_model_that_cannot_be_meant(pools: FakePools, model: str | None, status: int, words: str) -> None:
    pools.describe("c", lora=model is None)
    with pytest.raises(ApiError, match=words) as caught:
        choose_target(model, CONFIG.models, pools)
    assert (caught.value.status, caught.value.param) == (status, "model")


def test_the_only_model_that_can_be_meant(pools: FakePools) -> None:
    assert choose_target(None, CONFIG.models, pools) == Target("m", ("a", "b"))
    pools.describe("b", lora=False)
    assert choose_target(None, CONFIG.models, pools) == Target("m", ("a",))
    pools.describe("a", lora=False)
    with pytest.raises(ApiError, match="No pool takes adapters."):
        choose_target(None, CONFIG.models, pools)
    pools.forget("a")  # it may yet say that it does
    assert choose_target(None, CONFIG.models, pools) is None


async def test_none_is_ready(client: httpx.AsyncClient, pools: FakePools) -> None:
    pools.down("a", "b")
    response = await load(client)
    assert error_of(response)[:3] == (503, None, "pool_not_ready")
    assert response.headers["retry-after"] == "5"


@pytest.mark.parametrize("name", ["../x", "x\n", "x\0", "", "\N{GRINNING FACE}" * 9999, "__proto__", "x/../m", "m"])
async def test_an_odd_name_unloads_nothing(
    client: httpx.AsyncClient, pools: FakePools, live: LiveAdapter, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    response = await client.post(UNLOAD, json={"lora_name": name})
    assert error_of(response)[:3] == (404, "lora_name", "adapter_not_found")
    assert len(response.json()["error"]["message"]) < 200
    assert pools.fakes.kept == {"x": live} and caplog.messages == []


# Unloading


@pytest.fixture
def live(pools: FakePools) -> LiveAdapter:
    pools.fakes.kept["x"] = adapter = LiveAdapter(path="p", model="m", pools=("a", "b"), ready=True)
    return adapter


@pytest.mark.parametrize("model", [{}, {"model": "m"}])
async def test_unload(client: httpx.AsyncClient, pools: FakePools, live: LiveAdapter, model: dict[str, str]) -> None:
    response = await client.post(UNLOAD, json={"lora_name": "x", **model})
    assert (response.status_code, response.json()) == (200, {"id": "x", "object": "model", "deleted": True})
    for name in "ab":
        assert pools.handles[name].called == [("update_adapters", ())]
        assert pools.handles[name].held == [{}]  # replicas read it there
    assert (await client.post("/v1/completions", json={"model": "x"})).status_code == 404


async def test_unload_stands_where_a_replica_does_not_hear_it(
    client: httpx.AsyncClient, pools: FakePools, live: LiveAdapter, caplog: pytest.LogCaptureFixture
) -> None:
    pools.handles["a"].update_adapters = [RayActorError()]
    assert (await client.post(UNLOAD, json={"lora_name": "x"})).status_code == 200
    assert pools.fakes.kept == {}
    assert any("not every replica was told to unload the adapter x" in message for message in caplog.messages)


async def test_one_that_is_not_there(client: httpx.AsyncClient, pools: FakePools, live: LiveAdapter) -> None:
    pools.describe("c", lora=True, adapters=("listed",))
    for body, expected in (
        ({"lora_name": "y"}, (404, "adapter_not_found", "No adapter 'y' was loaded.")),
        ({"lora_name": "m"}, (404, "adapter_not_found", "No adapter 'm' was loaded.")),
        ({"lora_name": "x", "model": "n"}, (404, "adapter_not_found", "No adapter 'x' was loaded for 'n'.")),
    ):
        status, param, code, message = error_of(await client.post(UNLOAD, json=body))
        assert param == "lora_name"
        assert (status, code, message) == expected
    listed = error_of(await client.post(UNLOAD, json={"lora_name": "listed"}))
    assert listed[:3] == (400, "lora_name", "not_live")
    misspelt = error_of(await client.post(UNLOAD, json={"name": "x"}))
    assert misspelt[0] == 400 and misspelt[1] in ("name", "lora_name")
    assert "x" in pools.fakes.kept


# What can be asked for


async def test_listed_adapters_go_to_the_pools_that_have_them(client: httpx.AsyncClient, pools: FakePools) -> None:
    pools.describe("b", lora=True, adapters=("listed",))
    response = await client.post("/v1/completions", json={"model": "listed"})
    assert (response.status_code, response.headers["x-enginehouse-pool"]) == (200, "b")
    pools.down("b")
    status, _, code, message = error_of(await client.post("/v1/completions", json={"model": "listed"}))
    assert (status, code, message) == (503, "pool_not_ready", "No pool of 'listed' is ready: 'b' is updating.")


async def test_an_adapter_that_is_being_loaded_is_not_shown(
    client: httpx.AsyncClient, pools: FakePools, live: LiveAdapter
) -> None:
    pools.fakes.kept["x"] = live.model_copy(update={"ready": False})
    await pools.refresh_adapters()
    assert (await client.get("/v1/models/x")).status_code == 404


async def test_adapters_of_pools_that_no_model_names_are_not_shown(
    client: httpx.AsyncClient, gateway: Gateway, pools: FakePools, live: LiveAdapter
) -> None:
    await pools.refresh_adapters()
    gateway.config = IngressConfig.model_validate({"models": {"n": {"pools": ["c"]}}})
    assert (await client.post("/v1/completions", json={"model": "x"})).status_code == 404
    gateway.config = IngressConfig.model_validate({"models": {"n": {"pools": ["b", "c"]}}})
    assert (await client.get("/v1/models/x")).json()["parent"] == "n"


async def test_a_model_s_name_is_never_an_adapter_s(client: httpx.AsyncClient, pools: FakePools) -> None:
    pools.describe("c", lora=True, adapters=("m",))
    response = await client.post("/v1/completions", json={"model": "m"})
    assert response.headers["x-enginehouse-pool"] == "a"
    assert pools.handles["a"].asked[-1]["adapter"] is None


async def test_the_404_lists_adapters_too(client: httpx.AsyncClient, pools: FakePools, live: LiveAdapter) -> None:
    await pools.refresh_adapters()
    message = error_of(await client.post("/v1/completions", json={"model": "y"}))[3]
    assert message == "The model 'y' does not exist. There are: 'alias', 'm', 'n', 'x'."


async def test_both_are_documented(client: httpx.AsyncClient) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    for path, required in ((LOAD, ["lora_name", "lora_path"]), (UNLOAD, ["lora_name"])):
        schema = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert schema["required"] == required

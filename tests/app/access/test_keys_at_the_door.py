"""Keys and their limits through the ingress's whole application, over pools that are stand-ins."""

import asyncio
import json
import logging
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from fastapi.routing import APIRoute
from ray.serve.handle import DeploymentHandle

from app.access.access import Access
from app.access.guard import MAX_HEADER_BYTES
from app.access.secret import digest
from app.config import IngressConfig
from app.endpoints import OPEN_PATHS, ROUTES
from app.gateway import Gateway
from app.ingress import Door
from app.pools import PoolDirectory, PoolState
from app.routing.decide import PoolView
from deployments.wire import WireRequest, WireResponse

CHAT = "/v1/chat/completions"
GENERATE = [path for route in ROUTES for path in route.paths]
RUNNING = PoolState(True, "running")
KEYS: list[dict[str, Any]] = [
    {"name": "plain"},
    {"name": "narrow", "models": ["m", "al*"], "tenant": "team"},
    {"name": "boss", "admin": True},
    {"name": "slow", "requests_per_minute": 2, "tokens_per_minute": 1000, "max_concurrent": 1},
]
CONFIG: dict[str, Any] = {
    "models": {"m": {"pools": ["a", "b"]}, "org/big": {"pools": ["b"]}},
    "aliases": {"alias": "org/big", "other": "m"},
}
Message = MutableMapping[str, Any]


class FakePool:
    """A pool's handle, which answers when it may."""

    def __init__(self) -> None:
        self.asked: list[WireRequest] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.waits = asyncio.Event()
        self.body = b'{"usage": {"total_tokens": 40}}'
        self.error: Exception | None = None

    @property
    def respond(self) -> "FakePool":
        return self

    def remote(self, wire: WireRequest) -> "FakeCall":
        self.asked.append(wire)
        return FakeCall(asyncio.ensure_future(self._answer()))

    async def _answer(self) -> WireResponse:
        self.waits.set()
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return {"status": 200, "media_type": "application/json", "headers": {}, "body": self.body}


class FakeCall:
    def __init__(self, answer: "asyncio.Future[WireResponse]") -> None:
        self._answer = answer
        self.cancel = answer.cancel

    def __await__(self) -> Any:
        return self._answer.__await__()


class FakePools(PoolDirectory):
    def __init__(self) -> None:
        super().__init__()
        self.fakes = {"a": FakePool(), "b": FakePool()}

    def state(self, pool: str) -> PoolState:
        return RUNNING

    def view(self, pool: str) -> PoolView:
        return PoolView(pool, True, "running", None)

    def handle(self, pool: str) -> DeploymentHandle[Any]:
        handle: Any = self.fakes[pool]
        return handle  # type: ignore[no-any-return]

    @property
    def asked(self) -> int:
        return sum(len(pool.asked) for pool in self.fakes.values())


@pytest.fixture
def pools() -> FakePools:
    return FakePools()


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.yaml"
    path.write_text(yaml.safe_dump([{**key, "sha256": digest(f"eh-{key['name']}".encode()).hex()} for key in KEYS]))
    return path


@pytest.fixture
def gateway(pools: FakePools, keys_file: Path) -> Gateway:
    gateway = Gateway(pools, access=Access("127.0.0.1", lambda: 0))
    configure(gateway, access={"keys_file": str(keys_file)})
    return gateway


def configure(gateway: Gateway, **settings: Any) -> None:
    gateway.configure(IngressConfig.model_validate({**CONFIG, **settings}))


def by(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer eh-{name}"}


def code(response: httpx.Response) -> tuple[int, Any]:
    return response.status_code, response.json()["error"]["code"]


# Keys


@pytest.mark.parametrize("path", GENERATE)
@pytest.mark.parametrize(
    ("headers", "status"), [([], b"missing_api_key"), ([(b"authorization", b"Bearer eh-no")], b"invalid_api_key")]
)
async def test_who_has_no_key_is_refused_before_the_body_is_read(
    app: Door, pools: FakePools, path: str, headers: list[tuple[bytes, bytes]], status: bytes
) -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("the body is read")

    async def send(message: Message) -> None:
        sent.append(message)

    await app({"type": "http", "method": "POST", "path": path, "headers": headers}, receive, send)
    assert sent[0]["status"] == 401 and b"www-authenticate" in dict(sent[0]["headers"])
    assert status in sent[1]["body"]
    assert pools.asked == 0


@pytest.mark.parametrize("path", GENERATE)
async def test_a_key_is_let_in(client: httpx.AsyncClient, path: str) -> None:
    for headers in (by("plain"), {"x-api-key": "eh-plain"}):
        response = await client.post(path, json={"model": "m"}, headers=headers)
        assert response.status_code == 200
        assert not [name for name in response.headers if name.startswith("x-ratelimit")]


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/m", "/nope", CHAT, "/v1/load_lora_adapter"])
async def test_all_else_takes_a_key_too(client: httpx.AsyncClient, path: str) -> None:
    assert code(await client.get(path)) == (401, "missing_api_key")


@pytest.mark.parametrize("path", sorted(OPEN_PATHS))
async def test_what_is_open(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code == 200


async def test_a_refusal_to_anthropics_clients(client: httpx.AsyncClient) -> None:
    document = (await client.post("/v1/messages", json={"model": "m"})).json()
    assert (document["type"], document["error"]["type"]) == ("error", "authentication_error")


async def test_without_keys_on_another_host_only_probes_answer(client: httpx.AsyncClient, gateway: Gateway) -> None:
    gateway.access.listen_on("0.0.0.0")
    configure(gateway)
    assert code(await client.post(CHAT, json={"model": "m"})) == (401, "no_api_keys")
    assert code(await client.get("/v1/models")) == (401, "no_api_keys")
    assert (await client.get("/health")).status_code == 200
    configure(gateway, access={"anonymous": True})
    assert (await client.post(CHAT, json={"model": "m"})).status_code == 200
    assert code(await client.post("/v1/load_lora_adapter", json={})) == (403, "admin_key_required")


async def test_without_keys_on_loopback_nothing_is_asked_for(client: httpx.AsyncClient, gateway: Gateway) -> None:
    configure(gateway)
    assert (await client.post(CHAT, json={"model": "m"})).status_code == 200
    assert (await client.post("/v1/load_lora_adapter", json={})).status_code == 400


# Models


@pytest.mark.parametrize(
    ("name", "model", "pool"),
    [("plain", "org/big", "b"), ("narrow", "m", "a"), ("narrow", "alias", "b"), ("plain", "other", "a")],
)
async def test_a_model_that_a_key_may_ask_for(client: httpx.AsyncClient, name: str, model: str, pool: str) -> None:
    response = await client.post(CHAT, json={"model": model}, headers=by(name))
    assert (response.status_code, response.headers["x-enginehouse-pool"]) == (200, pool)


async def test_what_a_key_may_not_ask_for_is_as_if_it_were_not_there(
    client: httpx.AsyncClient, pools: FakePools
) -> None:
    messages = set()
    for model in ("org/big", "other", "nothing", "alas"):  # the last is one of its patterns, and no model
        for response in (
            await client.post(CHAT, json={"model": model}, headers=by("narrow")),
            await client.get(f"/v1/models/{model}", headers=by("narrow")),
        ):
            assert code(response) == (404, "model_not_found")
            messages.add(response.json()["error"]["message"].replace(model, "MODEL"))
    [message] = messages
    assert message.startswith("The model 'MODEL' does not exist, or the key 'narrow' may not use it.")
    assert pools.asked == 0


async def test_a_key_for_everything_is_told_what_there_is(client: httpx.AsyncClient) -> None:
    response = await client.post(CHAT, json={"model": "nothing"}, headers=by("plain"))
    assert "There are: 'm', 'org/big'." in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("plain", ["alias", "m", "org/big", "other"]),
        ("narrow", ["alias", "m"]),
        ("boss", ["alias", "m", "org/big", "other"]),
    ],
)
async def test_models_are_listed_by_key(client: httpx.AsyncClient, name: str, models: list[str]) -> None:
    listed = [model["id"] for model in (await client.get("/v1/models", headers=by(name))).json()["data"]]
    assert listed == models
    for model in models:
        assert (await client.get(f"/v1/models/{model}", headers=by(name))).json()["id"] == model


async def test_an_admin_key_asks_no_model(client: httpx.AsyncClient) -> None:
    assert code(await client.post(CHAT, json={"model": "m"}, headers=by("boss"))) == (404, "model_not_found")


# What changes the server


def changing(app: Door) -> list[str]:
    """All that may be sent something, but for answers."""
    routes = [route for route in app.framework.routes if isinstance(route, APIRoute)]
    return [route.path for route in routes if route.methods != {"GET"} and route.path not in GENERATE]


def test_what_changes_the_server(app: Door) -> None:
    """Another route belongs here only if it takes an admin key, as the next tests see to."""
    assert changing(app) == ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"]


@pytest.mark.parametrize(
    "shown",
    [
        [],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", b"Bearer eh-no"), (b"authorization", b"Bearer eh-boss")],
        [(b"authorization", b"Bearer \xff\xfe\x80")],
        [(b"authorization", b"Bearer eh-boss\xc3\xa9")],
        [(b"authorization", b"Bearer eh-" + b"x" * 50_000)],
        [(b"authorization", b"Basic ZWgtYm9zczo=")],
        [(b"cookie", b"authorization=Bearer eh-boss")],
        [(b"x-forwarded-for", b"127.0.0.1"), (b"x-real-ip", b"127.0.0.1"), (b"host", b"localhost")],
    ],
)
async def test_without_a_key_nothing_is_changed_or_told(
    client: httpx.AsyncClient, app: Door, caplog: pytest.LogCaptureFixture, shown: list[tuple[bytes, bytes]]
) -> None:
    caplog.set_level(logging.DEBUG)
    asked = [("POST", path) for path in (*changing(app), *GENERATE)]
    for method, path in [*asked, ("GET", "/v1/models"), ("GET", "/v1/models/m"), ("DELETE", "/v1/models/m")]:
        response = await client.request(method, path, content=b"{", headers=shown)
        error = response.json()["error"]
        assert response.status_code == 401 and error["code"] in ("missing_api_key", "invalid_api_key")
        assert set(error) == {"message", "type", "param", "code"}
        assert response.headers["www-authenticate"].startswith("Bearer")
    assert [record for record in caplog.records if record.name == "ray.serve"] == []


@pytest.mark.parametrize("ending", ["", "%0A", "/"])
@pytest.mark.parametrize("name", ["plain", "narrow", "slow"])
async def test_what_changes_the_server_takes_an_admin_key(
    client: httpx.AsyncClient, app: Door, name: str, ending: str
) -> None:
    """By whatever spelling of its path the framework takes."""
    for path in changing(app):
        response = await client.post(path + ending, json={"lora_name": "x"}, headers=by(name), follow_redirects=True)
        assert code(response) == (403, "admin_key_required")


async def test_an_admin_key_comes_as_far_as_the_bodys_judgement(client: httpx.AsyncClient, app: Door) -> None:
    for path in changing(app):
        response = await client.post(path, json={"nonsense": 1}, headers=by("boss"))
        assert code(response) == (400, "missing_parameter")


# Limits


async def test_requests_a_minute(client: httpx.AsyncClient, pools: FakePools) -> None:
    statuses = []
    for _ in range(3):
        response = await client.post(CHAT, json={"model": "m", "max_tokens": 8}, headers=by("slow"))
        statuses.append((response.status_code, response.headers["x-ratelimit-remaining-requests"]))
    assert statuses == [(200, "1"), (200, "0"), (429, "0")]
    assert code(response) == (429, "rate_limit_exceeded")
    assert response.headers["retry-after"] == "30"
    assert pools.asked == 2
    assert (await client.post(CHAT, json={"model": "m"}, headers=by("plain"))).status_code == 200


async def test_tokens_are_settled_by_the_answer(client: httpx.AsyncClient) -> None:
    left = []
    for _ in range(2):
        response = await client.post(CHAT, json={"model": "m", "max_tokens": 500}, headers=by("slow"))
        left.append(response.headers["x-ratelimit-remaining-tokens"])
    assert left == ["500", "460"]  # 500 are reserved, and 40 were taken


async def test_what_fails_takes_no_tokens(client: httpx.AsyncClient, pools: FakePools) -> None:
    pools.fakes["a"].error = ValueError("inside")
    response = await client.post(CHAT, json={"model": "m", "max_tokens": 500}, headers=by("slow"))
    assert response.status_code == 500
    pools.fakes["a"].error = None
    response = await client.post(CHAT, json={"model": "m", "max_tokens": 500}, headers=by("slow"))
    assert response.headers["x-ratelimit-remaining-tokens"] == "500"


async def test_requests_under_way(client: httpx.AsyncClient, pools: FakePools) -> None:
    pool, small = pools.fakes["a"], {"model": "m", "max_tokens": 8}
    pool.may_answer.clear()
    first = asyncio.create_task(client.post(CHAT, json=small, headers=by("slow")))
    async with asyncio.timeout(60):
        await pool.waits.wait()
        response = await client.post(CHAT, json=small, headers=by("slow"))
        assert response.status_code == 429 and "1 requests under way" in response.json()["error"]["message"]
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        pool.may_answer.set()
        assert (await client.post(CHAT, json=small, headers=by("slow"))).status_code == 200


async def test_a_model_that_is_refused_counts_nothing(client: httpx.AsyncClient) -> None:
    for _ in range(3):
        assert (await client.post(CHAT, json={"model": "nothing"}, headers=by("slow"))).status_code == 404
    response = await client.post(CHAT, json={"model": "m"}, headers=by("slow"))
    assert response.headers["x-ratelimit-remaining-requests"] == "1"


# What else goes by key


@pytest.mark.parametrize("match", [{"key": "narrow"}, {"tenant": "team"}])
async def test_routes_by_key(client: httpx.AsyncClient, gateway: Gateway, keys_file: Path, match: Any) -> None:
    configure(gateway, access={"keys_file": str(keys_file)}, routes=[{"name": "r", "match": match, "pools": ["b"]}])
    for name, pool in (("narrow", "b"), ("plain", "a")):
        response = await client.post(CHAT, json={"model": "m"}, headers=by(name))
        assert response.headers["x-enginehouse-pool"] == pool


async def test_those_who_wait_are_told_apart_by_key(
    client: httpx.AsyncClient, gateway: Gateway, keys_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"pools": {"a": {"max_concurrent": 5}}}
    configure(gateway, access={"keys_file": str(keys_file)}, admission=limits)
    entered, enter = list[str](), gateway.gate.enter

    async def entering(names: Any, who: Any) -> Any:
        entered.append(who.key)
        return await enter(names, who)

    monkeypatch.setattr(gateway.gate, "enter", entering)
    await client.post(CHAT, json={"model": "m"}, headers=by("plain"))
    assert entered == ["plain"]


# Headers, and what is told


@pytest.mark.parametrize(("method", "path"), [("POST", CHAT), ("GET", "/v1/models"), ("GET", "/health")])
async def test_headers_that_are_too_large(client: httpx.AsyncClient, method: str, path: str) -> None:
    headers = {**by("plain"), "x-large": "y" * MAX_HEADER_BYTES}
    assert code(await client.request(method, path, headers=headers)) == (431, "headers_too_large")


async def test_nothing_of_a_key_is_logged_or_answered(
    client: httpx.AsyncClient, pools: FakePools, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    pools.fakes["a"].error = ValueError("inside")
    for name in ("plain", "slow", "narrow", "boss", "unheard-of"):
        for path in (CHAT, "/v1/messages", "/v1/load_lora_adapter"):
            response = await client.post(path, json={"model": "m"}, headers=by(name))
            told = response.text + str(response.headers)
            assert f"eh-{name}" not in told and digest(f"eh-{name}".encode()).hex() not in told
    logged = caplog.text + "".join(str(vars(record)) for record in caplog.records)
    assert "the ingress failed" in logged
    for name in ("plain", "slow", "narrow", "boss", "unheard-of"):
        assert f"eh-{name}" not in logged and digest(f"eh-{name}".encode()).hex() not in logged


async def test_pools_are_told_nothing_of_a_key(client: httpx.AsyncClient, pools: FakePools) -> None:
    await client.post(CHAT, json={"model": "m"}, headers=by("plain"))
    [wire] = pools.fakes["a"].asked
    assert "eh-plain" not in json.dumps({**wire, "body": wire["body"].decode()})

"""A replica's adapters, on an engine that is a stand-in; and the store of live ones, on a stand-in for Ray's."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from ray.experimental import internal_kv

from deployments import adapters
from deployments.adapter_store import AdapterStore, LiveAdapter
from deployments.adapters import AdapterSet, Changes, changes
from deployments.config import PoolConfig
from deployments.engine import Adapter, Capabilities, Engine, EngineRequest, EngineResponse, EngineStats, PoolModel
from deployments.errors import ApiError
from deployments.pool import Pool
from deployments.wire import WireRequest
from tests.lora_files import adapter_shapes, write_adapter, write_safetensors

FITTING = adapter_shapes(1, 12, {"q_proj": 12}, 8)
REQUEST: WireRequest = {"endpoint": "completions", "body": b"{}", "request_id": "1", "adapter": "x"}


@dataclass
class FakeEngine(Engine):
    """Takes adapters, unless it is told why not."""

    done: list[str] = field(default_factory=list)
    refuses: str = ""
    lora: bool = True
    paths: dict[str, Path] = field(default_factory=dict)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def health(self) -> None: ...

    async def stats(self) -> EngineStats:
        return EngineStats(0, 0)

    async def handle(self, request: EngineRequest) -> EngineResponse:
        return EngineResponse(str(request.adapter).encode())

    def capabilities(self) -> Capabilities:
        return Capabilities(("completions",), lora=self.lora, max_lora_rank=16)

    async def load_adapter(self, adapter: Adapter) -> None:
        if self.refuses:
            raise ApiError(400, self.refuses)
        self.done.append(f"+{adapter.name}")
        self.paths[adapter.name] = adapter.path

    async def unload_adapter(self, name: str) -> None:
        self.done.append(f"-{name}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A base model, and adapters for it in `live` and beside that."""
    base = tmp_path / "base"
    base.mkdir()
    (base / "config.json").write_text("{}")
    write_safetensors(base / "model.safetensors", {"model.layers.0.self_attn.q_proj.weight": (12, 12)})
    for name in ("own", "live/a", "live/b"):
        write_adapter(tmp_path / name, FITTING)
    return tmp_path


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def live() -> dict[str, str]:
    return {}


Make = Callable[..., AdapterSet]


@pytest.fixture
async def make(folder: Path, engine: FakeEngine, live: dict[str, str]) -> AsyncIterator[Make]:
    made: list[AdapterSet] = []

    def make(configured: Mapping[str, str] | None = None, allowed: str | None = "live") -> AdapterSet:
        allowed = allowed and str(folder / allowed)
        made.append(AdapterSet(engine, PoolModel(str(folder / "base"), "m"), configured, allowed, lambda: live))
        return made[-1]

    yield make
    for one in made:
        await one.stop()


@pytest.fixture(autouse=True)
def propagate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "logger", logging.getLogger("adapters"))  # Serve rules its own as it likes


async def looked(one: AdapterSet) -> None:
    assert one._looking is not None
    await one._looking


# What to do


@pytest.mark.parametrize(
    ("wanted", "loaded", "unload", "load"),
    [
        ({}, {}, (), ()),
        ({"a": "1"}, {}, (), ("a",)),
        ({"a": "1"}, {"a": "1"}, (), ()),
        ({}, {"a": "1"}, ("a",), ()),
        ({"a": "2"}, {"a": "1"}, ("a",), ("a",)),
        ({"b": "1", "c": "3"}, {"a": "1", "c": "3"}, ("a",), ("b",)),
    ],
)
def test_changes(
    wanted: dict[str, str], loaded: dict[str, str], unload: tuple[str, ...], load: tuple[str, ...]
) -> None:
    assert changes(wanted, loaded) == Changes(unload, load)


# Doing it


async def test_a_start_loads_the_listed_and_the_live(
    make: Make, engine: FakeEngine, live: dict[str, str], folder: Path
) -> None:
    live["x"] = "a"
    one = make({"own": str(folder / "own")})
    await one.start()
    assert sorted(engine.done) == ["+own", "+x"]
    assert engine.paths == {"own": folder / "own", "x": folder / "live" / "a"}
    assert one.configured == ["own"]


async def test_a_listed_one_that_does_not_load_fails_the_start(make: Make) -> None:
    with pytest.raises(ValueError, match="^own: There is no folder '/nowhere'.$"):
        await make({"own": "/nowhere"}).start()


async def test_a_live_one_that_does_not_load_fails_no_start(
    make: Make, engine: FakeEngine, live: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    live |= {"x": "gone", "y": "b"}
    await make().start()
    assert engine.done == ["+y"]
    assert caplog.messages == ["the adapter x can't be loaded: There is no folder 'gone'."]


async def test_adapters_on_an_engine_that_takes_none(make: Make, engine: FakeEngine, live: dict[str, str]) -> None:
    engine.lora = False
    with pytest.raises(ValueError, match="takes none"):
        await make({"own": "own"}).start()
    live["x"] = "a"
    await make().start()
    assert engine.done == []


async def test_what_is_wanted_is_followed(make: Make, engine: FakeEngine, live: dict[str, str]) -> None:
    one = make()
    live["x"] = "a"
    assert await one.reconcile() == {}
    assert await one.reconcile() == {}
    live["x"] = "b"
    await one.reconcile()
    del live["x"]
    await one.reconcile()
    assert engine.done == ["+x", "-x", "+x", "-x"]
    assert engine.paths["x"].name == "b"


async def test_a_listed_one_comes_before_a_live_one_of_its_name(
    make: Make, engine: FakeEngine, live: dict[str, str], folder: Path
) -> None:
    live["own"] = "a"
    await make({"own": str(folder / "own")}).start()
    assert engine.paths == {"own": folder / "own"}


async def test_a_folder_that_is_no_longer_allowed(make: Make, live: dict[str, str]) -> None:
    live |= {"x": "../own", "y": "a"}
    assert "not inside the folder" in (await make().reconcile())["x"]
    assert "no 'adapters_folder'" in (await make(allowed=None).reconcile())["y"]


async def test_what_fails_is_logged_once_and_tried_again(
    make: Make, engine: FakeEngine, live: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    one = make()
    live["x"] = "a"
    engine.refuses = "No."
    for _ in range(3):
        assert await one.reconcile() == {"x": "No."}
    engine.refuses = "Never."
    assert await one.reconcile() == {"x": "Never."}
    engine.refuses = ""
    assert await one.reconcile() == {}
    assert caplog.messages == ["the adapter x can't be loaded: No.", "the adapter x can't be loaded: Never."]
    assert engine.done == ["+x"]


async def test_one_at_a_time(make: Make, engine: FakeEngine, live: dict[str, str]) -> None:
    live["x"] = "a"
    one = make()
    await asyncio.gather(*(one.reconcile() for _ in range(5)))
    assert engine.done == ["+x"]


async def test_a_look_is_in_the_background_and_never_fails(
    make: Make, engine: FakeEngine, live: dict[str, str], caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    one = make()
    live["x"] = "a"

    async def broken(adapter: Adapter) -> None:
        raise RuntimeError("lost")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "load_adapter", broken)
        for _ in range(2):
            one.look()
            one.look()
            await looked(one)
    assert caplog.messages == ["cannot bring the adapters up to date, trying again: RuntimeError('lost')"]
    one.look()
    await looked(one)
    assert engine.done == ["+x"]


# Checking, and what the pool does with it


async def test_a_check_changes_nothing(make: Make, engine: FakeEngine) -> None:
    pool = Pool(engine, "fake", make())
    assert await pool.check_adapter("x", "a") is None
    assert engine.done == []
    refusal = await pool.check_adapter("x", "none")
    assert refusal == {"message": "There is no folder 'none'.", "param": "lora_path", "code": "invalid_adapter"}


async def test_a_check_refuses_what_the_pool_cannot_have(make: Make, engine: FakeEngine, folder: Path) -> None:
    write_adapter(folder / "live" / "high", adapter_shapes(1, 12, {"q_proj": 12}, 32))
    for one, name, path, param, words in (
        (make(), "m", "a", "lora_name", "the name of this pool's model"),
        (make(), "x", "../own", "lora_path", "not inside the folder"),
        (make(), "x", "high", "lora_path", "at most 16"),
        (make(allowed=None), "x", "a", "lora_path", "no 'adapters_folder'"),
    ):
        with pytest.raises(ApiError, match=words) as caught:
            one.check(name, path)
        assert (caught.value.status, caught.value.param) == (400, param)
    engine.lora = False
    with pytest.raises(ApiError, match="takes no adapters"):
        make().check("x", "a")


async def test_a_model_that_is_not_here_cannot_be_compared(engine: FakeEngine, folder: Path) -> None:
    one = AdapterSet(engine, PoolModel("no/such", "m"), folder=str(folder / "live"))
    with pytest.raises(ApiError, match="aren't on this machine"):
        one.check("x", "a")


async def test_a_pool_answers_only_for_adapters_that_are_loaded(
    make: Make, engine: FakeEngine, live: dict[str, str]
) -> None:
    pool = Pool(engine, "fake", make())
    answer = await pool.respond(REQUEST)
    assert answer["status"] == 404
    assert b"model_not_found" in answer["body"]
    live["x"] = "a"
    assert await pool.update_adapters() == {}
    assert (await pool.respond(REQUEST))["body"] == b"x"
    assert (await pool.respond({**REQUEST, "adapter": None}))["body"] == b"None"
    del live["x"]
    await pool.update_adapters()
    assert (await pool.respond(REQUEST))["status"] == 404


async def test_a_health_check_brings_the_adapters_up_to_date(
    make: Make, engine: FakeEngine, live: dict[str, str]
) -> None:
    one = make()
    live["x"] = "a"
    await Pool(engine, "fake", one).check_health()
    await looked(one)
    assert engine.done == ["+x"]


async def test_a_pool_says_which_it_was_configured_with(make: Make, engine: FakeEngine) -> None:
    assert (await Pool(engine, "fake", make({"own": "own"})).describe())["adapters"] == ["own"]


# The configuration


@pytest.mark.parametrize("name", ["", "-a", "a b", "a\n", "ä", "x" * 201])
def test_names_that_no_adapter_may_have(name: str) -> None:
    with pytest.raises(ValidationError):
        PoolConfig(engine="vllm", model="m", adapters={name: "folder"})


@pytest.mark.parametrize("name", ["a", "org/name:v1.2", "9@x+y-z_"])
def test_names_that_one_may_have(name: str) -> None:
    assert list(PoolConfig(engine="vllm", model="m", adapters={name: "folder"}).adapters) == [name]


@pytest.mark.parametrize("served", ["m", None])
def test_the_model_s_own_name_is_taken(served: str | None) -> None:
    with pytest.raises(ValidationError, match="'m' has the name of the pool's model"):
        PoolConfig(engine="vllm", model="org/m", served_name=served, adapters={"m": "folder"})


def test_problems_of_a_configuration(engine: FakeEngine, folder: Path) -> None:
    def problems(model: str, **adapters: str) -> list[tuple[tuple[str, ...], str]]:
        given = {name: str(folder / path) for name, path in adapters.items()}
        return list(AdapterSet(engine, PoolModel(model, "m"), given, str(folder / "live")).problems())

    write_adapter(folder / "wide", adapter_shapes(1, 99, {"q_proj": 12}, 8))
    here = str(folder / "base")
    assert problems(here, x="own", y="live/a") == []
    [(key, message)] = problems(here, x="own", y="wide")
    assert key == ("adapters", "y") and "another base model" in message
    assert problems("no/such", x="own", y="wide") == []  # it can't be compared, and is there
    assert problems("no/such", x="none") == [(("adapters", "x"), f"There is no folder '{folder / 'none'}'.")]
    (folder / "live").rename(folder / "gone")
    assert problems(here) == [(("adapters_folder",), f"There is no folder '{folder / 'live'}'.")]
    engine.lora = False
    assert problems(here, x="own") == [(("adapters",), "The engine takes no adapters with these engine_args.")]
    assert problems(here) == [(("adapters_folder",), "The engine takes no adapters with these engine_args.")]


# The store


class FakeGcs:
    """Ray's key-value store."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def internal_kv_keys(self, prefix: bytes, namespace: bytes) -> list[bytes]:
        assert namespace == b"enginehouse"
        return [key for key in self.values if key.startswith(prefix)]

    def internal_kv_multi_get(self, keys: list[bytes], namespace: bytes) -> dict[bytes, bytes]:
        return {key: self.values[key] for key in keys if key in self.values}

    def internal_kv_put(self, key: bytes, value: bytes, overwrite: bool, namespace: bytes) -> int:
        assert namespace == b"enginehouse"
        there = key in self.values
        if overwrite or not there:
            self.values[key] = value
        return 0 if there else 1

    def internal_kv_del(self, key: bytes, by_prefix: bool, namespace: bytes) -> int:
        assert not by_prefix
        return 0 if self.values.pop(key, None) is None else 1


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> FakeGcs:
    gcs = FakeGcs()
    monkeypatch.setattr(internal_kv, "global_gcs_client", gcs)
    return gcs


LIVE = LiveAdapter(path="a", model="m", pools=("one", "two"))


def test_the_store_outside_of_ray_is_empty() -> None:
    assert AdapterStore().read() == {}


def test_a_name_is_claimed_once(gcs: FakeGcs) -> None:
    store = AdapterStore()
    assert store.claim("org/x", LIVE)
    assert not store.claim("org/x", LIVE.model_copy(update={"path": "b"}))
    assert store.read() == {"org/x": LIVE}
    store.replace("org/x", LIVE.model_copy(update={"ready": True}))
    assert store.read()["org/x"].ready
    store.remove("org/x")
    store.remove("org/x")
    assert store.read() == {}
    assert store.claim("org/x", LIVE)


def test_each_pool_s_own(gcs: FakeGcs) -> None:
    store = AdapterStore()
    store.claim("x", LIVE)
    store.claim("y", LIVE.model_copy(update={"pools": ("two",), "path": "b"}))
    assert store.paths("one") == {"x": "a"}
    assert store.paths("two") == {"x": "a", "y": "b"}
    assert store.paths("three") == {}


def test_what_a_newer_version_wrote_is_read(gcs: FakeGcs) -> None:
    gcs.values[b"adapter/x"] = b'{"path": "a", "model": "m", "pools": ["one", "two"], "later": 1}'
    gcs.values[b"other"] = b"theirs"
    assert AdapterStore().read() == {"x": LIVE}

"""A whole house in this process: the ingress's application, twice, over pools of four kinds. Ray isn't started."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from app.access.access import Access
from app.access.secret import digest
from app.access.settings import AccessConfig
from app.config import IngressConfig
from app.gateway import Gateway
from app.ingress import create_app
from deployments.adapter_store import LiveAdapter
from deployments.adapters import AdapterSet
from deployments.engine import Engine, PoolModel
from deployments.pool import Pool
from deployments.simulated import SimulatedArgs, SimulatedEngine
from tests.fuzz.engines import AbleEngine, OwnEngine
from tests.fuzz.inputs import MARKER, DoorName
from tests.fuzz.local_pools import LocalPools, Store
from tests.lora_files import adapter_shapes, write_adapter, write_safetensors

HEADS = {"q_proj": 12, "v_proj": 4}
SECRETS = {name: f"eh-{MARKER}-{name}" for name in ("limited", "narrow", "admin")}
MANY = 10**9
KEYS: list[dict[str, Any]] = [
    {"name": "limited", "requests_per_minute": MANY, "tokens_per_minute": MANY, "max_concurrent": 1000},
    {"name": "narrow", "models": ["m", "gpt-*"]},
    {"name": "admin", "admin": True, "models": ["*"]},
]
SETTINGS: dict[str, Any] = {
    "models": {
        "m": {"pools": ["plain"]},
        "able": {"pools": ["able"]},
        "own": {"pools": ["own"]},
        "prefix": {"pools": ["prefix"]},
        "org/name@v1": {"pools": ["plain", "able", "own"]},
    },
    "aliases": {"gpt-4*": "m", "either": {"m": 90, "able": 10}, "mine": "own"},
    "routes": [
        {"name": "tools", "match": {"needs": ["tools"]}, "pools": ["own", "able"]},
        {
            "name": "trial",
            "match": {"model": "org/*"},
            "sticky": True,
            "canary": {"pool": "able", "percent": 20},
            "shadow": {"pool": "prefix", "percent": 20},
        },
    ],
    "admission": {
        "pools": {"plain": {"max_concurrent": 64, "max_tokens_in_flight": 100_000}},
        "models": {"able": {"max_concurrent": 64}},
        "timeouts": {"total_s": 25},
    },
}


@dataclass(frozen=True, slots=True)
class House:
    """The doors, by which all requests come in."""

    doors: dict[DoorName, ASGIApp]


@asynccontextmanager
async def house(folder: Path) -> AsyncGenerator[House]:
    """`folder` is for keys and adapters."""
    store = Store()
    args = SimulatedArgs(time_factor=0, answer_tokens=4)
    base = _adapters(folder)
    engines: dict[str, tuple[Engine, PoolModel, str]] = {
        "plain": (SimulatedEngine(_model("m"), args), _model("m"), "least_outstanding"),
        "prefix": (SimulatedEngine(_model("prefix"), args), _model("prefix"), "prefix"),
        "able": (AbleEngine(_model("able"), args), PoolModel(str(base), "able"), "least_outstanding"),
        "own": (OwnEngine(), _model("own"), "least_outstanding"),
    }
    pools = {}
    for name, (engine, model, choice) in engines.items():
        await engine.start()
        live = partial(store.paths, name)
        adapters = AdapterSet(engine, model, folder=str(folder / "adapters"), read_live=live)
        pools[name] = Pool(engine, engine.__class__.__name__, adapters, choice)
    # As if it had been loaded live.
    assert store.claim("tuned", LiveAdapter(path="tuned", model="able", pools=("able",), ready=True))
    assert not await pools["able"].update_adapters()
    try:
        opened = await _door(pools, store, Access(), AccessConfig())
        locked = await _door(pools, store, Access(host=None), AccessConfig(keys_file=str(_keys(folder))))
        yield House({"open": opened, "locked": locked})
    finally:
        for engine, _, _ in engines.values():
            await engine.stop()


async def _door(pools: dict[str, Pool], store: Store, access: Access, config: AccessConfig) -> ASGIApp:
    directory = LocalPools(pools, store)
    await directory.learn()
    await directory.refresh_adapters()
    gateway = Gateway(directory, access=access)
    gateway.configure(IngressConfig.model_validate({**SETTINGS, "access": config}))
    return create_app(gateway)


def _model(name: str) -> PoolModel:
    return PoolModel(name, name)


def _keys(folder: Path) -> Path:
    path = folder / "keys.json"
    keys = [{**key, "sha256": digest(SECRETS[key["name"]].encode()).hex()} for key in KEYS]
    path.write_text(json.dumps(keys))
    path.chmod(0o600)
    return path


def _adapters(folder: Path) -> Path:
    """A checkpoint, and an adapter of it that may be loaded."""
    base = folder / "base"
    base.mkdir()
    (base / "config.json").write_text("{}")
    weights = {f"model.layers.0.self_attn.{name}.weight": (width, 12) for name, width in HEADS.items()}
    write_safetensors(base / "model.safetensors", {"model.embed_tokens.weight": (50, 12), **weights})
    write_adapter(folder / "adapters" / "tuned", adapter_shapes(1, 12, HEADS, 8))
    return base

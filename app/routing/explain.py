"""Where a config would send a request, told without starting anything."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NoReturn

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json, to_json

from app.endpoints import ROUTES
from app.routing.decide import Caller, PoolView
from app.routing.request_type import Seen
from app.routing.route import Routed, route
from app.routing.settings import RoutingConfig
from deployments import registry
from deployments.config import PoolConfig
from deployments.engine import Endpoint
from deployments.errors import ApiError

ENDPOINT_OF: Mapping[str, Endpoint] = {path: route.endpoint for route in ROUTES for path in route.paths}


class Example(BaseModel):
    """A request to explain."""

    model_config = ConfigDict(extra="forbid")

    name: str = ""  # what a table calls it
    body: dict[str, Any]
    path: str = "/v1/chat/completions"
    headers: dict[str, str] = Field({})
    key: str = ""  # names, not secrets
    tenant: str = ""


class Explanation(BaseModel):
    """Where a request goes, and why."""

    name: str
    request_type: str | None = None
    pool: str | None = None
    engine: str | None = None
    reason: str = ""
    passed_over: list[dict[str, str]] = Field([])
    model: str | None = None
    fallbacks: list[str] = Field([])
    shadow: str | None = None
    error: str | None = None


class ConfiguredPools:
    """The pools of a config, all of them up but those that are said to be down."""

    def __init__(self, pools: Mapping[str, PoolConfig], down: Collection[str] = ()) -> None:
        self._pools = pools
        self._views = {name: _view(name, pool, name in down) for name, pool in pools.items()}

    def view(self, pool: str) -> PoolView:
        return self._views.get(pool) or PoolView(pool, False, "not deployed")

    def adapters(self) -> Mapping[str, Sequence[str]]:
        names = dict.fromkeys(adapter for pool in self._pools.values() for adapter in pool.adapters)
        return {name: [key for key, pool in self._pools.items() if name in pool.adapters] for name in names}


def _view(name: str, pool: PoolConfig, down: bool) -> PoolView:
    can = registry.create(pool.engine, pool.pool_model, pool.typed_engine_args()).capabilities()
    return PoolView(name, not down, "down" if down else "running", pool.engine, can)


def read_examples(text: bytes) -> Iterator[Example]:
    """The requests of a file: a request's body; or an object with `body`, and `path`, `headers`, `key`, `tenant` or
    `name`; or a list of either; or one on each line.

    Raises:
        ValueError: it holds none, or one that isn't right; pydantic's error is one.
    """
    try:
        document = from_json(text)
    except ValueError:
        document = [from_json(line) for line in text.splitlines() if line.strip()]
    for each in document if isinstance(document, list) else [document]:
        whole = isinstance(each, dict) and "body" in each
        yield Example.model_validate(each if whole else {"body": each})


def explain(config: RoutingConfig, examples: Sequence[Example], pools: ConfiguredPools) -> Iterator[Explanation]:
    """Where each request goes; one after the other, so that what begins as one before it counts as seen."""
    seen = Seen()
    for number, example in enumerate(examples, 1):
        name = example.name or str(number)
        headers = [(name.lower().encode(), value.encode()) for name, value in example.headers.items()]
        caller = Caller(example.key, example.tenant)
        try:
            routed = route(config, _endpoint(example.path), to_json(example.body), headers, pools, seen, caller)
            yield _told(name, routed)
        except ApiError as error:
            yield Explanation(name=name, error=f"{error.status}: {error.message}")


def _endpoint(path: str) -> Endpoint:
    return ENDPOINT_OF.get(path) or _no_endpoint(path)


def _no_endpoint(path: str) -> NoReturn:
    raise ApiError(404, f"No such endpoint: {path}.")


def _told(name: str, routed: Routed) -> Explanation:
    pools = routed.decision.pools
    return Explanation(
        name=name,
        request_type=routed.kind,
        pool=pools[0].name if pools else None,
        engine=pools[0].engine if pools else None,
        reason=routed.told["x-enginehouse-reason"],
        passed_over=[asdict(over) for over in routed.decision.passed_over],
        model=routed.request.model,
        fallbacks=[pool.name for pool in pools[1:]],
        shadow=routed.decision.shadow,
        error=None if pools else "503: no pool is ready.",
    )

"""A request's way: from its bytes to the pools that may answer it."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.routing import names
from app.routing.decide import Caller, Decision, Draw, PoolView, decide, steady
from app.routing.request import Request, conversation_of, read_request
from app.routing.request_type import HEADER, classify
from app.routing.settings import RequestType, RoutingConfig
from deployments.engine import Endpoint
from deployments.model_name import replace_model

_TYPE, _CONVERSATION = HEADER.encode(), b"x-conversation-id"
ANYBODY = Caller()

Headers = Iterable[tuple[bytes, bytes]]  # names in lower case


class Pools(Protocol):
    """The pools there are."""

    def view(self, pool: str) -> PoolView: ...

    def adapters(self) -> Mapping[str, Sequence[str]]:
        """Adapters, each with the pools that have it."""


@dataclass(frozen=True, slots=True)
class Routed:
    """A request, and where it goes."""

    request: Request
    kind: RequestType
    body: bytes  # with the name of the model that is asked, where the client sent an alias
    adapter: str | None
    decision: Decision
    told: dict[str, str]  # of it, as headers of the answer


def route(
    config: RoutingConfig,
    endpoint: Endpoint,
    body: bytes,
    headers: Headers,
    pools: Pools,
    seen: Callable[[str], bool],
    caller: Caller = ANYBODY,
    luck: Callable[[], float] = random.random,
    permit: Callable[[str], None] = lambda _: None,
) -> Routed:
    """Where a request goes. `seen`: whether a prompt began like this before; `luck`: a number from 0 to below 1;
    `permit` raises for a model, as the client names it, that the caller may not ask for.

    Raises:
        ApiError: 400, the body or what it says of its type is wrong; 404, there is no such model.
    """
    request = read_request(endpoint, body, config.request_types.characters_per_token)
    permit(request.model)
    said, conversation = _header(headers, _TYPE), _header(headers, _CONVERSATION)
    document = request.document

    def chance(route: str, draw: Draw) -> float:
        sticky = any(each.sticky for each in config.routes if each.name == route)
        return steady(route, draw, conversation_of(document, conversation)) if sticky else luck()

    if (model := _model_of(request, config, conversation)) != document.model:
        body, document.model = replace_model(body, model), model
    views = [pools.view(pool) for pool in pools_of(config, model, pools)]
    kind, why = classify(request, said, config.request_types, seen)
    decision = decide(request, kind, views, config.routes, caller, chance, pools.view)
    told = {"x-enginehouse-request-type": kind, "x-enginehouse-reason": f"{decision.reason} ({why})"}
    return Routed(request, kind, body, None if model in config.models else model, decision, told)


def pools_of(config: RoutingConfig, model: str, pools: Pools) -> Sequence[str]:
    """The pools of a model, or of an adapter.

    Raises:
        ApiError: 404, there is none of that name.
    """
    if found := config.models.get(model):
        return found.pools
    return names.pools_of(model, config.models, names.exposed_adapters(pools.adapters(), config.models))


def _model_of(request: Request, config: RoutingConfig, conversation: str | None) -> str:
    if not config.aliases or request.model in config.models:  # nothing to draw, so no conversation to tell
        return request.model
    point = steady(request.model, "weights", conversation_of(request.document, conversation))
    return names.resolve(request.model, config.aliases, config.models, point)


def _header(headers: Headers, name: bytes) -> str | None:
    for header, value in headers:
        if header == name:
            return value.decode("latin-1")
    return None

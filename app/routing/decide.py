"""Where a request goes: the pools that may answer it, in order, and why."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from hashlib import blake2b
from typing import Literal, Protocol

from app.routing.request import Request
from app.routing.settings import DEFAULT_ROUTES, EVERYDAY, Canary, RequestType, RouteConfig, RouteMatch
from deployments.capabilities import honours
from deployments.engine import Capabilities

Draw = Literal["weights", "canary", "shadow"]  # what is left to chance, each by a draw of its own


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool, as far as routing goes."""

    name: str
    ready: bool
    state: str  # why it isn't ready, in a few words
    engine: str | None = None  # None: it hasn't said yet
    can: Capabilities | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    key: str = ""  # the name of an API key; "": there are no keys
    tenant: str = ""


class Chance(Protocol):
    def __call__(self, route: str, draw: Draw) -> float:
        """A number from 0 to below 1, for the route of that name."""


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A pool that isn't asked, and why."""

    pool: str
    why: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a request goes."""

    pools: tuple[PoolView, ...]  # the first is asked; the others, where it can't be
    reason: str
    passed_over: tuple[PassedOver, ...] = ()
    shadow: str | None = None  # a pool that gets a copy


def decide(
    request: Request,
    kind: RequestType,
    pools: Sequence[PoolView],
    routes: Sequence[RouteConfig],
    caller: Caller,
    chance: Chance,
    others: Callable[[str], PoolView],
) -> Decision:
    """Where a request goes that is of type `kind`.

    `pools`: the model's, in the order of the configuration; `others`: any pool by name, for canaries and shadows.
    A pool that isn't ready is passed over, and one that can't honour the request, while another can.
    """
    matching = [route for route in (*routes, *DEFAULT_ROUTES) if matches(route.match, request, kind, caller)]
    target = next(route for route in matching if route.pools or route.engines)
    ordered, why = _ordered(target, pools, chance)
    if (trial := _drawn(matching, "canary", chance)) is not None:
        route, canary = trial
        ordered = [others(canary), *(pool for pool in ordered if pool.name != canary)]
        why = f"canary of route {route}"
    fit, passed = _fit(request, ordered)
    reason = _reason(kind, why, fit, ordered)
    shadow = _drawn(matching, "shadow", chance)
    copied = shadow is not None and others(shadow[1]).ready
    return Decision(tuple(fit), reason, tuple(passed), shadow[1] if shadow is not None and copied else None)


def _drawn(
    matching: Sequence[RouteConfig], draw: Literal["canary", "shadow"], chance: Chance
) -> tuple[str, str] | None:
    """The first matching route that has a canary, or a shadow, and its pool, if the draw falls on it."""
    for route in matching:
        share: Canary | None = getattr(route, draw)
        if share is not None:
            return (route.name, share.pool) if chance(route.name, draw) * 100 < share.percent else None
    return None


def _reason(kind: RequestType, why: str, fit: Sequence[PoolView], ordered: Sequence[PoolView]) -> str:
    if not fit:
        return f"{kind}: {why}"
    passed = next(at for at, pool in enumerate(ordered) if pool.name == fit[0].name)
    skipping = f", {passed} passed over" if passed else ""
    return f"{kind}: {why}{skipping}, {fit[0].engine or 'engine unknown'}"


def matches(match: RouteMatch, request: Request, kind: RequestType, caller: Caller) -> bool:
    """Whether a route is for a request: everything that it says has to fit."""
    least, most = match.min_prompt_tokens, match.max_prompt_tokens
    return (
        (not match.request_type or kind in match.request_type)
        and (match.stream is None or match.stream == request.stream)
        and (not match.model or _named(request.model, match.model))
        and (least is None or request.prompt_tokens >= least)
        and (most is None or request.prompt_tokens <= most)
        and (not match.key or _named(caller.key, match.key))
        and (not match.tenant or _named(caller.tenant, match.tenant))
        and request.needs.issuperset(match.needs)
    )


def _named(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _ordered(route: RouteConfig, pools: Sequence[PoolView], chance: Chance) -> tuple[list[PoolView], str]:
    """The model's pools as a route has them, and what it says of the first."""
    if route.engines:
        rank = _ranks(route.engines, route.only)
        chosen = [pool for pool in pools if not route.only or pool.engine in rank]
        if len(chosen) > 1:
            chosen.sort(key=lambda pool: rank.get(pool.engine or "", len(rank)))
        return chosen, f"route {route.name}"
    there = {pool.name: pool for pool in pools}
    named = [there[name] for name in route.pools if name in there]
    why = f"route {route.name}"
    if weights := {name: weight for name, weight in route.weights.items() if name in there and there[name].ready}:
        drawn = pick(weights, chance(route.name, "weights"))
        named.sort(key=lambda pool: pool.name != drawn)
        why += f", weight {weights[drawn]:g} of {sum(weights.values()):g}"
    rest = [] if route.only else [pool for pool in pools if pool.name not in route.pools]
    return [*named, *rest], why


@lru_cache(1000)
def _ranks(engines: tuple[str, ...], only: bool) -> Mapping[str, int]:
    """The place of each engine, for a route that names some."""
    named = dict.fromkeys(engines if only else (*engines, *EVERYDAY))
    return {engine: rank for rank, engine in enumerate(named)}


def pick(weights: Mapping[str, float], point: float) -> str:
    """The name that a point from 0 to below 1 falls on, where each takes as much of the line as it weighs."""
    left = point * sum(weights.values())
    for name, weight in weights.items():
        left -= weight
        if left < 0:
            return name
    return name


def _fit(request: Request, pools: Sequence[PoolView]) -> tuple[list[PoolView], list[PassedOver]]:
    """The pools that are asked, and those that aren't. Where none can honour a request, one has to say why."""
    fit, unable, passed = [], [], []
    for pool in pools:
        if not pool.ready:
            passed.append(PassedOver(pool.name, pool.state))
        elif lacking := [*shortfalls(request, pool)]:
            unable.append((pool, PassedOver(pool.name, "; ".join(lacking))))
        else:
            fit.append(pool)
    if not fit:
        return [pool for pool, _ in unable], passed
    return fit, [*passed, *(over for _, over in unable)]


def shortfalls(request: Request, pool: PoolView) -> Iterator[str]:
    """Why a pool can't honour a request, as far as it is known."""
    can = pool.can
    if can is None:
        return
    if request.endpoint not in can.endpoints:
        yield f"doesn't serve {request.endpoint}"
    if request.needs:
        yield from (f"doesn't honour {need}" for need in sorted(request.needs) if not honours(can, need))
    if can.context_length is not None and request.prompt_tokens > can.context_length:
        yield f"has a context of {can.context_length} tokens"


def steady(route: str, draw: Draw, conversation: str) -> float:
    """A draw that is the same for all requests of a conversation."""
    digest = blake2b(f"{route}\0{draw}\0{conversation}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) / 2**53

"""Lets requests into pools as their limits allow, and has the others wait or go away."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from app.admission.budget import ALONE, Budget, Cost, Place
from app.admission.settings import AdmissionConfig, LimitConfig
from app.admission.waiting import PRIORITY, Waiting
from app.routing.request import most_tokens
from app.routing.settings import RequestType
from deployments.errors import ApiError

NO_LIMIT = LimitConfig()
FIRST_GUESS_S = 1.0  # that a request takes, until one has ended
LONGEST_S = 600  # that a client is told to wait


@dataclass(frozen=True, slots=True)
class Applicant:
    """A request that wants in."""

    kind: RequestType
    key: str
    model: str
    cost: Cost


class Ticket:
    """Of a request that was let in: given back once, when its answer has ended."""

    def __init__(self, gate: "Gate", pool: "_PoolGate", who: Applicant) -> None:
        self.pool = pool.name
        self.waited_s = 0.0
        self._gate = gate
        self._of = pool
        self._who = who
        self._began_s = time.monotonic()
        self._open = True

    def give_back(self) -> None:
        if self._open:
            self._open = False
            self._gate.leave(self._of, self._who, time.monotonic() - self._began_s)


@dataclass(eq=False, slots=True)
class _Waiter:
    who: Applicant
    turn: asyncio.Future[Ticket]


class _Lack(NamedTuple):
    """A limit that a request doesn't fit into now."""

    limit: str
    of_model: bool = False


class _PoolGate:
    """One pool's budget, and who waits for it."""

    def __init__(self, name: str, budget: Budget) -> None:
        self.name = name
        self.budget = budget
        self.waiting: Waiting[_Waiter] = Waiting()
        self.takes_s = FIRST_GUESS_S  # a request, on average

    def retry_after_s(self, kind: RequestType) -> int:
        """When a request that comes now would have its turn, as far as the last ones tell."""
        expected_s = (self.waiting.ahead_of(kind) + 1) * self.takes_s / max(1, self.budget.running)
        return max(1, min(LONGEST_S, math.ceil(expected_s)))


class Gate:
    """All pools' and models' budgets, in this process."""

    def __init__(self, config: AdmissionConfig | None = None, place: Place = ALONE) -> None:
        self._pools: dict[str, _PoolGate] = {}
        self._models: dict[str, Budget] = {}
        self._queued: Counter[tuple[str, int]] = Counter()  # by model and priority
        self.place = place
        self.set(config or AdmissionConfig())

    def move(self, place: Place) -> None:
        """There are more of the ingress's replicas, or fewer."""
        if place != self.place:
            self.place = place
            self.set(self.config)

    def set(self, config: AdmissionConfig) -> None:
        """Other limits, from now on; who is in or waits stays."""
        self.config, place = config, self.place
        for name in {*self._pools, *config.pools}:
            self._pool(name).budget.set(config.pools.get(name, NO_LIMIT), place)
        for name in {*self._models, *config.models}:
            limit = config.models.get(name, NO_LIMIT)
            self._models.setdefault(name, Budget(limit)).set(limit, place)
        for pool in self._pools.values():
            self._let_in(pool)

    @property
    def limits(self) -> bool:
        """Whether there is any limit: once there was, all is counted."""
        return bool(self._pools or self._models)

    @property
    def running(self) -> int:
        """Requests that were let in and haven't ended, where there is any limit."""
        return sum(pool.budget.running for pool in self._pools.values())

    @property
    def queued(self) -> int:
        return sum(len(pool.waiting) for pool in self._pools.values())

    def cost(self, prompt_tokens: int, max_tokens: int | None, choices: int) -> Cost:
        return Cost(most_tokens(prompt_tokens, max_tokens, choices, self.config.default_max_tokens))

    async def enter(self, pools: Sequence[str], who: Applicant) -> Ticket:
        """Into the first pool that has room; if none has, into the queue of the first that has one.

        Raises:
            ApiError: 429, a limit is reached, and no more may wait; 400, the request is larger than a limit;
                504, its turn didn't come in time.
        """
        there = [self._pool(name) for name in pools]
        model = self._models.get(who.model)
        if model is not None and model.too_large(who.cost):
            raise _too_large(who.cost, [], model)
        for pool in there:
            if (
                not pool.waiting.ahead_of(who.kind)
                and not pool.budget.too_large(who.cost)
                and self._lack(pool, who) is None
            ):
                return self._take(pool, who)
        return await self._wait(self._to_wait_for(there, who), who)

    async def _wait(self, pool: _PoolGate, who: Applicant) -> Ticket:
        turn: asyncio.Future[Ticket] = asyncio.get_running_loop().create_future()
        began_s = time.monotonic()
        leave = pool.waiting.add(_Waiter(who, turn), who.kind, who.key, who.cost.tokens)
        priority = PRIORITY[who.kind]
        self._queued[who.model, priority] += 1
        self._let_in(pool)  # it may go past those that wait
        try:
            async with asyncio.timeout(self.config.timeouts.queue_s):
                ticket = await turn
        except BaseException as error:
            leave()
            if turn.done() and not turn.cancelled():
                turn.result().give_back()  # its turn came while it left
            if isinstance(error, TimeoutError):
                raise self._too_late(pool, who.kind) from None
            raise
        finally:
            self._queued[who.model, priority] -= 1
        ticket.waited_s = time.monotonic() - began_s
        return ticket

    def leave(self, pool: _PoolGate, who: Applicant, took_s: float) -> None:
        """A request has ended that was let in."""
        for budget in self._budgets(pool, who):
            budget.give_back(who.cost)
        pool.takes_s += (took_s - pool.takes_s) / 16
        self._let_in(pool)
        if who.model in self._models:  # others may have waited for that
            for other in self._pools.values():
                self._let_in(other)

    def _pool(self, name: str) -> _PoolGate:
        if name not in self._pools:
            self._pools[name] = _PoolGate(name, Budget(self.config.pools.get(name, NO_LIMIT), self.place))
        return self._pools[name]

    def _budgets(self, pool: _PoolGate, who: Applicant) -> list[Budget]:
        """All that a request counts in."""
        model = self._models.get(who.model)
        return [pool.budget] if model is None else [pool.budget, model]

    def _lack(self, pool: _PoolGate, who: Applicant) -> _Lack | None:
        """Why a request can't be let in now; None if it can."""
        if (limit := self._limit(pool.budget, who)) is not None:
            return _Lack(f"{limit} of pool '{pool.name}'")
        model = self._models.get(who.model)
        if model is not None and (limit := self._limit(model, who)) is not None:
            return _Lack(f"{limit} of model '{who.model}'", of_model=True)
        return None

    def _limit(self, budget: Budget, who: Applicant) -> str | None:
        """The limit that a request doesn't fit into, and whether that is for what it leaves free."""
        limit = budget.lacks(who.cost, self.config.headroom.of(who.kind))
        return limit if limit is None or budget.lacks(who.cost) else f"{limit} less headroom.{who.kind}"

    def _take(self, pool: _PoolGate, who: Applicant) -> Ticket:
        for budget in self._budgets(pool, who):
            budget.take(who.cost)
        return Ticket(self, pool, who)

    def _let_in(self, pool: _PoolGate) -> None:
        """All of those that wait for a pool, and can be."""

        def fits(waiter: _Waiter) -> bool:
            return self._lack(pool, waiter.who) is None

        def blocks(waiter: _Waiter) -> bool:
            # Nobody goes ahead of one that waits for the pool; but a model's own limit is no matter of others.
            lack = self._lack(pool, waiter.who)
            return lack is not None and not lack.of_model

        while len(pool.waiting) and (waiter := pool.waiting.pop_first(fits, blocks)) is not None:
            if not waiter.turn.done():  # it may have left just now
                waiter.turn.set_result(self._take(pool, waiter.who))

    def _to_wait_for(self, pools: Sequence[_PoolGate], who: Applicant) -> _PoolGate:
        """The pool to wait for: the first whose queue has room.

        Raises:
            ApiError: 400 or 429, as `enter`.
        """
        first, model = pools[0], self._models.get(who.model)
        large_enough = [pool for pool in pools if not pool.budget.too_large(who.cost)]
        if not large_enough:
            raise _too_large(who.cost, [pool.budget for pool in pools], model)
        priority = PRIORITY[who.kind]
        if model is not None and model.limits and self._queued[who.model, priority] >= model.most_queued:
            raise self._full(first, who, f"max_queued of model '{who.model}'")
        for pool in large_enough:
            if pool.waiting.count[priority] < pool.budget.most_queued:
                return pool
        raise self._full(first, who, f"max_queued of pool '{first.name}'")

    def _full(self, pool: _PoolGate, who: Applicant, queue: str) -> ApiError:
        """The refusal of a request that may not even wait. `queue` is the limit where nothing else is lacking."""
        lack, after_s = self._lack(pool, who), pool.retry_after_s(who.kind)
        limit = lack.limit if lack else queue
        message = (
            f"The server is busy: {limit} is reached, and no more {who.kind} requests may wait. "
            f"Try again in {after_s} s."
        )
        headers = {"retry-after": str(after_s)}
        return ApiError(429, message, type="rate_limit_error", code="queue_full", headers=headers)

    def _too_late(self, pool: _PoolGate, kind: RequestType) -> ApiError:
        seconds = self.config.timeouts.queue_s
        message = f"The request waited {seconds:g} s for its turn at pool '{pool.name}' (timeouts.queue_s)."
        headers = {"retry-after": str(pool.retry_after_s(kind))}
        return ApiError(504, message, type="server_error", code="queue_timeout", headers=headers)


def _too_large(cost: Cost, pools: Sequence[Budget], model: Budget | None) -> ApiError:
    largest = max((pool.largest for pool in pools if pool.largest is not None), default=None)
    most = min(each for each in (largest, model.largest if model else None) if each is not None)
    message = f"The request counts for {cost.tokens} tokens, prompt and answer; at most {most} may be in flight."
    return ApiError(400, message, param="max_tokens", code="too_many_tokens")

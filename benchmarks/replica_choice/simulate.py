"""A pool of simulated engines behind one ingress process or more, on a virtual clock: the engines are those of the
`simulated` pools, the policies those of production."""

import heapq
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.replica_choice.workload import Ask, Shape, conversations
from deployments.batching import Request, Scheduler
from deployments.replica_choice.policy import Policy
from deployments.timing import TimingModel


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    shape: Shape
    rate: float  # conversations a second that begin, of the whole pool
    replicas: int = 4
    ingresses: int = 1  # processes, which know nothing of each other; each request comes by any of them
    duration_s: float = 240.0  # in which conversations begin
    warm_up_s: float = 60.0  # of it; what is asked before isn't counted
    delay_s: float = 0.002  # from the ingress to a replica, and back
    timing: TimingModel = field(default_factory=TimingModel)
    seed: int = 1


@dataclass(slots=True)
class Served:
    """A request, and what became of it."""

    asked_s: float
    ingress: int
    replica: int
    ask: Ask
    turns: Iterator[tuple[Ask, float]]
    first_s: float = 0.0
    ended_s: float = 0.0


@dataclass(slots=True)
class Outcome:
    """What a run gives."""

    served: list[Served] = field(default_factory=list)  # those that are counted
    prompt_tokens: int = 0
    hit_tokens: int = 0  # of them, in the replicas' prefix caches
    loads: list[Sequence[int]] = field(default_factory=list)  # true ones, once a virtual second


class Simulation:
    """One run, from event to event."""

    def __init__(self, case: Case, policy: Callable[[], Policy]) -> None:
        self._case = case
        self._names = [f"replica{index}" for index in range(case.replicas)]
        self._engines = [Scheduler(case.timing) for _ in self._names]
        self._busy = [False for _ in self._names]
        self._policies = [policy() for _ in range(case.ingresses)]
        self._chance = random.Random(case.seed)
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._running: dict[str, Served] = {}
        self._loads = [0 for _ in self._names]
        self._now_s = 0.0
        self._outcome = Outcome()

    def run(self) -> Outcome:
        begin = conversations(self._case.shape, self._case.seed)
        at_s = 0.0
        while (at_s := at_s + self._chance.expovariate(self._case.rate)) < self._case.duration_s:
            turns = next(begin).turns()
            self._at(at_s, self._ask, next(turns)[0], turns)
        for second in range(int(self._case.warm_up_s), int(self._case.duration_s)):
            self._at(second, self._sample)
        self._at(self._case.warm_up_s, self._mark)
        while self._events:
            self._now_s, _, happen, arguments = heapq.heappop(self._events)
            happen(*arguments)
        self._outcome.prompt_tokens += sum(engine.prompt_tokens for engine in self._engines)
        self._outcome.hit_tokens += sum(engine.hit_tokens for engine in self._engines)
        return self._outcome

    def _at(self, at_s: float, happen: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), happen, arguments))

    def _mark(self) -> None:
        """The warm-up is over: what was counted so far is taken off in the end."""
        self._outcome.prompt_tokens -= sum(engine.prompt_tokens for engine in self._engines)
        self._outcome.hit_tokens -= sum(engine.hit_tokens for engine in self._engines)

    def _sample(self) -> None:
        self._outcome.loads.append(tuple(self._loads))

    def _ask(self, ask: Ask, turns: Iterator[tuple[Ask, float]]) -> None:
        ingress = self._chance.randrange(self._case.ingresses)
        policy = self._policies[ingress]
        chosen = policy.choose(self._names, ask.blocks, self._now_s).index
        policy.loads.add(self._names[chosen])
        self._loads[chosen] += 1
        served = Served(self._now_s, ingress, chosen, ask, turns)
        self._at(self._now_s + self._case.delay_s, self._arrive, served)

    def _arrive(self, served: Served) -> None:
        request_id = str(next(self._order))
        self._running[request_id] = served
        ask, replica = served.ask, served.replica
        self._engines[replica].add(Request(request_id, ask.prompt, len(ask.answer), ask.answer))
        self._at(self._now_s + self._case.delay_s, self._accepted, served, self._at_replica(replica))
        if not self._busy[replica]:
            self._step(replica)

    def _at_replica(self, replica: int) -> int:
        return self._engines[replica].running + self._engines[replica].waiting

    def _accepted(self, served: Served, total: int) -> None:
        """The replica's word of its requests comes back, as with Serve."""
        self._policies[served.ingress].loads.reported(self._names[served.replica], total, self._now_s)

    def _step(self, replica: int) -> None:
        step = self._engines[replica].step()
        self._busy[replica] = bool(step.scheduled_tokens)
        if self._busy[replica]:
            self._at(self._now_s + step.duration_s, self._stepped, replica, step.tokens)

    def _stepped(self, replica: int, tokens: Sequence[Any]) -> None:
        for token in tokens:
            served = self._running[token.request_id]
            if token.index == 0:
                served.first_s = self._now_s + self._case.delay_s
            if token.last:
                del self._running[token.request_id]
                self._at(self._now_s + self._case.delay_s, self._end, served)
        self._step(replica)

    def _end(self, served: Served) -> None:
        served.ended_s = self._now_s
        self._policies[served.ingress].loads.remove(self._names[served.replica])
        self._loads[served.replica] -= 1
        if served.asked_s >= self._case.warm_up_s:
            self._outcome.served.append(served)
        for ask, pause_s in itertools.islice(served.turns, 1):
            self._at(self._now_s + pause_s, self._ask, ask, served.turns)

"""Who is let into a pool, who waits, and who is turned away."""

import asyncio
import random
import time
from typing import Any

import pytest

from app.admission.budget import Cost, Place
from app.admission.gate import LONGEST_S, Applicant, Gate, Ticket
from app.admission.settings import AdmissionConfig
from app.routing.settings import RequestType
from deployments.errors import ApiError

HEADROOM = {"batch": 0.2, "offline": 0.5}


def gate(**config: Any) -> Gate:
    return Gate(AdmissionConfig.model_validate(config))


def who(kind: RequestType = "chat", key: str = "k", model: str = "m", tokens: int = 10) -> Applicant:
    return Applicant(kind, key, model, Cost(tokens))


def one(**limit: Any) -> dict[str, Any]:
    return {"pools": {"p": {"max_concurrent": 1, **limit}}}


async def refused(there: Gate, applicant: Applicant, *pools: str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await there.enter(pools or ("p",), applicant)
    return caught.value


async def waits(there: Gate, applicant: Applicant, *pools: str) -> "asyncio.Task[Ticket]":
    task = asyncio.create_task(there.enter(pools or ("p",), applicant))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def soon(task: "asyncio.Task[Ticket]") -> Ticket:
    async with asyncio.timeout(60):
        return await task


def test_without_limits_there_is_nothing_to_do() -> None:
    assert not gate().limits
    assert gate(**one()).limits
    assert gate(models={"m": {"max_concurrent": 1}}).limits


def test_what_a_request_costs() -> None:
    there = gate(default_max_tokens=100)
    assert there.cost(10, 5, 1) == Cost(15)
    assert there.cost(10, None, 1) == Cost(110)
    assert there.cost(10, 5, 3) == Cost(25)


async def test_there_is_room_or_one_waits() -> None:
    there = gate(**one())
    first = await there.enter(["p"], who())
    second = await waits(there, who())
    assert (first.pool, first.waited_s) == ("p", 0.0)
    first.give_back()
    first.give_back()
    assert (await soon(second)).waited_s > 0
    third = await waits(there, who())
    second.result().give_back()
    (await soon(third)).give_back()
    assert (await there.enter(["p"], who())).waited_s == 0.0


async def test_a_full_queue_turns_away_at_once_and_says_which_limit() -> None:
    there = gate(**one(max_queued=1))
    await there.enter(["p"], who())
    waiting = await waits(there, who())
    began_s = time.perf_counter()
    error = await refused(there, who())
    assert time.perf_counter() - began_s < 0.05
    assert (error.status, error.code, error.type) == (429, "queue_full", "rate_limit_error")
    assert error.message == (
        "The server is busy: max_concurrent of pool 'p' is reached, and no more chat requests may wait. "
        "Try again in 2 s."
    )
    assert error.headers == {"retry-after": "2"}
    waiting.cancel()


async def test_when_to_come_again_is_told_by_how_long_requests_took(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("app.admission.gate.time.monotonic", lambda: now[0])
    there = gate(**one(max_queued=0))

    async def retry_after(took_s: float) -> int:
        for _ in range(200):
            ticket = await there.enter(["p"], who())
            now[0] += took_s
            ticket.give_back()
        ticket = await there.enter(["p"], who())
        error = await refused(there, who())
        ticket.give_back()
        return int(error.headers["retry-after"])

    assert [await retry_after(seconds) for seconds in (0.01, 7.5, 10_000)] == [1, 8, LONGEST_S]


async def test_tokens_in_flight() -> None:
    there = gate(pools={"p": {"max_tokens_in_flight": 100, "max_queued": 0}})
    await there.enter(["p"], who(tokens=60))
    error = await refused(there, who(tokens=41))
    assert "max_tokens_in_flight of pool 'p'" in error.message
    await there.enter(["p"], who(tokens=40))


async def test_one_that_can_never_fit_is_told_so() -> None:
    for config in ({"pools": {"p": {"max_tokens_in_flight": 100}}}, {"models": {"m": {"max_tokens_in_flight": 100}}}):
        error = await refused(gate(**config), who(tokens=101))
        assert (error.status, error.code, error.param) == (400, "too_many_tokens", "max_tokens")
        assert error.message == ("The request counts for 101 tokens, prompt and answer; at most 100 may be in flight.")


async def test_a_large_request_goes_to_the_pool_it_fits_into() -> None:
    there = gate(pools={"small": {"max_tokens_in_flight": 100}, "large": {"max_tokens_in_flight": 1000}})
    assert (await there.enter(["small", "large"], who(tokens=500))).pool == "large"
    waiting = await waits(there, who(tokens=600), "small", "large")
    waiting.cancel()


async def test_the_next_pool_is_taken_where_the_first_has_no_room() -> None:
    there = gate(pools={"p": {"max_concurrent": 1, "max_queued": 0}, "q": {"max_concurrent": 1, "max_queued": 1}})
    tickets = [await there.enter(["p", "q"], who()) for _ in range(2)]
    assert [ticket.pool for ticket in tickets] == ["p", "q"]
    waiting = await waits(there, who(), "p", "q")
    error = await refused(there, who(), "p", "q")
    assert "pool 'p'" in error.message
    tickets[1].give_back()
    assert (await soon(waiting)).pool == "q"


async def test_a_pool_without_limits_is_never_full() -> None:
    there = gate(**one())
    assert [(await there.enter(["other"], who())).pool for _ in range(100)] == ["other"] * 100


async def test_a_model_s_limit_holds_over_all_its_pools() -> None:
    there = gate(models={"m": {"max_concurrent": 2, "max_queued": 1}})
    first = await there.enter(["p"], who())
    await there.enter(["q"], who())
    waiting = await waits(there, who(), "p", "q")
    error = await refused(there, who(), "q")
    assert "max_concurrent of model 'm'" in error.message
    assert (await there.enter(["q"], who(model="n"))).pool == "q"
    first.give_back()
    assert (await soon(waiting)).pool == "p"


async def test_who_waits_for_a_model_holds_up_no_other_model() -> None:
    there = gate(pools={"p": {"max_concurrent": 2}}, models={"m": {"max_concurrent": 1}})
    await there.enter(["p"], who())
    await waits(there, who())
    assert (await there.enter(["p"], who(model="n"))).pool == "p"


async def test_a_model_s_slot_is_passed_on_to_another_pool() -> None:
    there = gate(models={"m": {"max_concurrent": 1}})
    ticket = await there.enter(["p"], who())
    waiting = await waits(there, who(), "q")
    ticket.give_back()
    assert (await soon(waiting)).pool == "q"


async def test_chat_goes_past_those_that_can_wait() -> None:
    there = gate(**one())
    ticket = await there.enter(["p"], who())
    order: list[str] = []

    async def ask(kind: RequestType) -> None:
        mine = await there.enter(["p"], who(kind))
        order.append(kind)
        mine.give_back()

    tasks = []
    for kind in ("offline", "batch", "chat"):
        tasks.append(asyncio.create_task(ask(kind)))
        await asyncio.sleep(0)
    ticket.give_back()
    async with asyncio.timeout(60):
        await asyncio.gather(*tasks)
    assert order == ["chat", "batch", "offline"]


async def test_offline_leaves_room_for_chat() -> None:
    there = gate(pools={"p": {"max_concurrent": 10, "max_queued": 100}}, headroom=HEADROOM)
    tickets = [await there.enter(["p"], who("offline")) for _ in range(5)]
    blocked = await waits(there, who("offline"))
    tickets += [await there.enter(["p"], who("chat")) for _ in range(5)]
    assert max(ticket.waited_s for ticket in tickets) < 0.05
    for ticket in tickets[:5]:
        ticket.give_back()
        await asyncio.sleep(0)
        assert not blocked.done()  # there is room, but not for offline
    tickets[5].give_back()
    assert (await soon(blocked)).pool == "p"


async def test_what_others_have_under_way_counts() -> None:
    there = gate(pools={"p": {"max_concurrent": 10, "max_queued": 0}}, headroom=HEADROOM)
    patient: list[tuple[RequestType, int]] = [("offline", 5), ("batch", 3)]
    for kind, more in patient:
        for _ in range(more):
            await there.enter(["p"], who("batch"))
        error = await refused(there, who(kind))
        assert f"max_concurrent less headroom.{kind} of pool 'p' is reached" in error.message
    for _ in range(2):
        await there.enter(["p"], who("chat"))
    assert "busy: max_concurrent of pool 'p' is reached" in (await refused(there, who("batch"))).message


async def test_those_that_can_wait_take_no_place_in_the_queue_from_others() -> None:
    there = gate(**one(max_queued=2))
    ticket = await there.enter(["p"], who())
    everyone: list[RequestType] = ["offline", "batch", "chat"]
    for kind in everyone:
        for _ in range(2):
            await waits(there, who(kind))
        error = await refused(there, who(kind))
        assert error.status == 429 and f"no more {kind} requests may wait" in error.message
    assert (await refused(there, who("multi_turn"))).status == 429  # as urgent as chat
    ticket.give_back()


async def test_nor_in_a_model_s() -> None:
    there = gate(models={"m": {"max_concurrent": 1, "max_queued": 1}})
    await there.enter(["p"], who())
    everyone: list[RequestType] = ["offline", "chat"]
    for kind in everyone:
        await waits(there, who(kind))
        assert (await refused(there, who(kind))).status == 429


async def test_chat_goes_past_those_that_wait_for_headroom() -> None:
    there = gate(pools={"p": {"max_concurrent": 4, "max_queued": 1}}, headroom=HEADROOM)
    for _ in range(2):
        await there.enter(["p"], who("offline"))
    await waits(there, who("offline"))
    assert (await there.enter(["p"], who())).waited_s == 0.0


async def test_when_to_come_again_depends_on_who_goes_first() -> None:
    there = gate(**one(max_queued=5))
    await there.enter(["p"], who())
    for _ in range(2):
        await waits(there, who("offline"))
    pool = there._pools["p"]
    assert (pool.retry_after_s("chat"), pool.retry_after_s("offline")) == (1, 3)


async def test_a_turn_that_does_not_come_in_time() -> None:
    there = gate(**one(), timeouts={"queue_s": 0.02})
    ticket = await there.enter(["p"], who())
    error = await refused(there, who())
    assert (error.status, error.code) == (504, "queue_timeout")
    assert "0.02 s for its turn at pool 'p' (timeouts.queue_s)" in error.message
    ticket.give_back()
    assert (await there.enter(["p"], who())).waited_s == 0.0  # it waits no more


async def test_who_leaves_while_it_waits_takes_nothing_along() -> None:
    there = gate(**one(max_queued=1))
    ticket = await there.enter(["p"], who())
    gone = await waits(there, who())
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    kept = await waits(there, who())  # there is room in the queue again
    ticket.give_back()
    (await soon(kept)).give_back()
    assert there._pools["p"].budget.running == 0


async def test_who_leaves_as_its_turn_comes_gives_it_back() -> None:
    there = gate(**one())
    ticket = await there.enter(["p"], who())
    gone = await waits(there, who())
    ticket.give_back()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert (there._pools["p"].budget.running, there._pools["p"].budget.tokens) == (0, 0)


async def test_limits_change_live_and_nobody_is_dropped() -> None:
    there = gate(**one())
    first = await there.enter(["p"], who())
    waiting = await waits(there, who())
    there.set(AdmissionConfig.model_validate({"pools": {"p": {"max_concurrent": 2}}}))
    second = await soon(waiting)
    third = await waits(there, who())
    there.set(AdmissionConfig())
    await soon(third)
    for ticket in (first, second, third.result()):
        ticket.give_back()
    assert there._pools["p"].budget.running == 0


async def test_of_several_ingress_replicas_each_has_its_part() -> None:
    there = gate(pools={"p": {"max_concurrent": 4, "max_queued": 0}})
    there.move(Place(0, 2))
    for _ in range(2):
        await there.enter(["p"], who())
    assert (await refused(there, who())).status == 429
    there.move(Place(0, 1))
    await there.enter(["p"], who())


async def test_counts_never_leak() -> None:
    """Whatever happens to requests, in the end nothing is under way."""
    limits = {"max_concurrent": 3, "max_tokens_in_flight": 90, "max_queued": 4}
    there = gate(pools={"p": limits, "q": limits}, models={"m": {"max_concurrent": 4}}, timeouts={"queue_s": 0.01})
    chance = random.Random(1)
    let_in = 0

    async def ask(number: int) -> None:
        nonlocal let_in
        kind: RequestType = chance.choice(["chat", "batch", "offline"])
        model, key, tokens = chance.choice("mn"), chance.choice("abc"), chance.randrange(1, 60)
        await asyncio.sleep(chance.random() / 4)  # until it comes
        try:
            ticket = await there.enter(chance.sample(["p", "q"], 2), who(kind, key, model, tokens))
        except ApiError:
            return
        let_in += 1
        try:
            assert there._pools["p"].budget.running <= 3 and there._pools["q"].budget.tokens <= 90
            await asyncio.sleep(chance.random() / 200)  # its answer
        finally:
            ticket.give_back()

    tasks = [asyncio.create_task(ask(number)) for number in range(400)]
    for task in chance.sample(tasks, 80):
        asyncio.get_running_loop().call_later(chance.random() / 4, task.cancel)
    async with asyncio.timeout(60):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)
    assert let_in > 50
    for pool in there._pools.values():
        assert (pool.budget.running, pool.budget.tokens, len(pool.waiting)) == (0, 0, 0)
        assert not any(pool.waiting.count.values())
    assert all(not budget.running for budget in there._models.values())
    assert not any(there._queued.values())

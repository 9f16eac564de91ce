"""Traffic of all kinds for many minutes, with faults at random, and what is held before and after."""

import asyncio
import random
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

import aiohttp

from tests.faults.leaving import LONG
from tests.faults.load import Clients, Tally
from tests.faults.rig import DIES_AFTER, Census, Rig
from tests.faults.suite import Seen, Size, row

# In which everything is made that is made once, and C's allocator grows to what such traffic scatters over it: seen to
# take five minutes, and then to stay.
WARM_S = 300.0
MIX = {"alone": 6, "backed": 4, "spare": 2, "small": 4, "stuck": 2, "outside": 4}  # clients of each model
LEAVERS = 2
PAUSE_S = (1.0, 4.0)  # from one fault's end to the next
SETTLED_WITHIN_S = 60.0
MOST_MB = 30.0  # that the ingress's two processes may grow in all of it, and the pools' four
MOST_DESCRIPTORS = 20
MOST_TASKS = 6
# What clients may be told: of the model whose only replica has just died, and of the pool that hangs.
TOLD = frozenset(
    ["engine_lost", "pool_not_ready", "replica_lost", "first_token_timeout", "between_tokens_timeout", "total_timeout"]
)


@row("mixed traffic with faults at random", is_soak=True)
async def soak(rig: Rig, size: Size, seen: Seen) -> None:
    """Nothing leaks: memory, tasks, file descriptors, tickets, counters, processes; every pool answers as before."""
    chance = random.Random(1)
    await _mix(rig, chance, min(WARM_S, size.soak_s), Seen())
    before = await _settled(rig, None)
    await _mix(rig, chance, size.soak_s, seen)
    after = await _settled(rig, before)
    seen.counts |= {
        "s": size.soak_s,
        "MB more, ingress": round(after.ingress_mb - before.ingress_mb, 1),
        "MB more, pools": round(after.pools_mb - before.pools_mb, 1),
        "descriptors more": after.descriptors - before.descriptors,
        "tasks more": after.tasks - before.tasks,
        "tickets left": after.tickets,
        "requests left": after.busy,
    }
    _compare(before, after, seen)
    # A place that Serve's router thought taken would send these elsewhere.
    last = await Clients(rig.url, "small", 2).run(16)
    seen.must(last.answered == {"small": 16}, f"a pool of two places doesn't answer two: {last.counts()}")


def _compare(before: Census, after: Census, seen: Seen) -> None:
    seen.must(after.ingress_mb - before.ingress_mb <= MOST_MB, "the ingress's memory grew")
    seen.must(after.pools_mb - before.pools_mb <= MOST_MB, "the pools' memory grew")
    seen.must(_is_settled(before, after), f"{after}, but before {before}")


def _is_settled(before: Census, after: Census) -> bool:
    return (
        after.tickets == after.busy == 0
        and after.descriptors <= before.descriptors + MOST_DESCRIPTORS
        and after.tasks <= before.tasks + MOST_TASKS
        and after.processes == before.processes
    )


async def _settled(rig: Rig, before: Census | None) -> Census:
    """What is held once it is as it was before, or after a while all the same."""
    deadline_s = asyncio.get_running_loop().time() + SETTLED_WITHIN_S
    while True:
        found = await rig.census()
        if _is_settled(before or found, found) or asyncio.get_running_loop().time() > deadline_s:
            return found
        await asyncio.sleep(1)  # until the next look


async def _mix(rig: Rig, chance: random.Random, seconds: float, seen: Seen) -> None:
    loads = {model: Clients(rig.url, model, clients) for model, clients in MIX.items()}
    running = [asyncio.ensure_future(load.run(sys.maxsize)) for load in loads.values()]
    leaving = [asyncio.ensure_future(_leave_again_and_again(rig)) for _ in range(LEAVERS)]
    faults = Counter[str]()
    try:
        deadline_s = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < deadline_s:
            name = chance.choice(sorted(FAULTS))
            await FAULTS[name](rig)
            faults[name] += 1
            await asyncio.sleep(chance.uniform(*PAUSE_S))  # calm between two faults
    finally:
        for load in loads.values():
            load.stop()
        for each in leaving:
            each.cancel()
        await asyncio.gather(*running)
        for each in leaving:
            with suppress(asyncio.CancelledError):
                await each
    await rig.until_whole()
    seen.counts |= {f"times {name}": count for name, count in faults.items()}
    every = Tally()
    for model, load in loads.items():
        tally = load.tally
        seen.must(not tally.wrong and not tally.cut, f"{model}: {tally.counts()}")
        seen.must(set(tally.told) <= TOLD, f"{model}: told {dict(tally.told)}")
        every.answered += tally.answered
        every.told += tally.told
    seen.counts |= every.counts()


async def _leave_again_and_again(rig: Rig) -> None:
    body = {"model": "thorough", "max_tokens": 3000, "messages": [{"role": "user", "content": LONG}], "stream": True}
    limit = aiohttp.ClientTimeout(total=0.7)  # at the first token, about
    async with aiohttp.ClientSession(timeout=limit, connector=aiohttp.TCPConnector(force_close=True)) as session:
        while True:
            with suppress(TimeoutError):
                async with session.post(f"{rig.url}/v1/chat/completions", json=body) as answer:
                    await answer.read()


async def _kill(rig: Rig) -> None:
    rig.signal("steady")
    await rig.until_whole()


async def _stop(rig: Rig) -> None:
    victim = rig.signal("stuck", signal.SIGSTOP)
    await asyncio.sleep(6)  # so long it hangs
    victim.send_signal(signal.SIGCONT)


async def _die(rig: Rig) -> None:
    clients = Clients(rig.url, "mortal", 4, tokens=DIES_AFTER)
    await clients.at_once("Hi.")
    await rig.until_whole()


async def _end_outside(rig: Rig) -> None:
    assert rig.outside is not None
    rig.outside.kill()
    await asyncio.sleep(3)  # so long it is away
    await asyncio.to_thread(rig.outside.start)


async def _change_routes(rig: Rig) -> None:
    rig.application("ingress")["deployments"][0]["user_config"]["models"]["backed"]["pools"].reverse()
    await rig.deploy()


FAULTS: dict[str, Callable[[Rig], Awaitable[None]]] = {
    "a replica killed": _kill,
    "an engine stopped for 6 s": _stop,
    "an engine died": _die,
    "a server behind a pool ended": _end_outside,
    "routes changed": _change_routes,
}

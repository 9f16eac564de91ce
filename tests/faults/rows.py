"""The kinds of faults, and what must come of each."""

import asyncio
import signal
from collections import Counter

from tests.faults.leaving import leave
from tests.faults.load import Clients, Tally
from tests.faults.rig import DIES_AFTER, INGRESSES, REPLICAS, Rig
from tests.faults.suite import BROKEN, Seen, Size, clean, row

CLIENTS = 40


@row("clients leave")
async def leaves(rig: Rig, size: Size, seen: Seen) -> None:
    """The engine stops, in the median within 20 ms: in mid-stream, before the first token, of a whole answer."""
    await leave(rig, "thorough", size.rounds, seen)


@row("an engine dies in mid-stream")
async def dies(rig: Rig, size: Size, seen: Seen) -> None:
    """Each of its streams ends with an error event, without [DONE], and is counted; its replica is replaced."""
    streams, rounds = 10, max(2, size.rounds // 8)
    told = Counter[str]()
    before = rig.counted("enginehouse_streams_broken_total", pool="mortal")
    for _ in range(rounds):
        await rig.until_whole()
        [victim] = rig.server.replicas("mortal")
        clients = Clients(rig.url, "mortal", streams, tokens=DIES_AFTER)
        await clients.at_once("Hi.")
        told += clients.tally.told
        await rig.until(lambda victim=victim: not victim.is_running(), "the replica ends with its engine", 10)  # type: ignore[misc]
        seen.must(not clients.tally.wrong and not clients.tally.cut, f"{clients.tally.counts()}")
    seen.counts |= {"streams": rounds * streams, "told": told["engine_lost"]}
    seen.must(told == {"engine_lost": rounds * streams}, f"told: {dict(told)}")

    def counted() -> float:
        return rig.counted("enginehouse_streams_broken_total", pool="mortal") - before

    await rig.until(lambda: counted() == rounds * streams, "they are counted", 30)
    await rig.until_whole()


@row("a pool fails before the first byte")
async def fails(rig: Rig, size: Size, seen: Seen) -> None:
    """The next pool of the route answers, in few attempts; once it is there again, it is asked again."""
    outside = rig.outside
    assert outside is not None

    async def kill() -> None:
        outside.kill()

    tally = await Clients(rig.url, "outside", 8).run(size.requests // 4, kill)
    clean(seen, tally, BROKEN)  # those whose streams had begun
    seen.must(tally.told.total() <= 8, f"{tally.told.total()} were told")
    seen.must(tally.answered["outside"] and tally.answered["spare"], f"answered by {dict(tally.answered)}")
    seen.must(max(tally.attempts) <= 3, f"attempts: {dict(tally.attempts)}")
    seen.counts["answered by the next"] = tally.answered["spare"]
    await asyncio.to_thread(outside.start)
    seen.must(await _is_asked_again(rig, "outside"), "it isn't asked again")


@row("a pool is full")
async def full(rig: Rig, size: Size, seen: Seen) -> None:
    """The next pool of the route answers: no client is told."""
    tally = await Clients(rig.url, "small", 20, await rig.texts()).run(size.requests // 4)
    clean(seen, tally)
    seen.must(tally.answered["small"] and tally.answered["spare"], f"answered by {dict(tally.answered)}")
    seen.counts["answered by the next"] = tally.answered["spare"]


async def _is_asked_again(rig: Rig, pool: str, seconds: float = 60) -> bool:
    deadline = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < deadline:
        tally = await Clients(rig.url, pool, 1).run(8)
        if tally.answered[pool] == 8:
            return True
        await asyncio.sleep(0.5)  # until the next look
    return False


@row("a replica is killed")
async def killed(rig: Rig, size: Size, seen: Seen) -> None:
    """No answer is lost or cut short without a word, and the pool is whole again without help."""
    tally = await _ask_while_one_is_killed(rig, size, "steady")
    clean(seen, tally, BROKEN)
    seen.must(tally.told.total() <= CLIENTS, f"{tally.told.total()} were told")
    seen.must(len(rig.server.replicas("steady")) == REPLICAS, "it isn't whole")


async def _ask_while_one_is_killed(rig: Rig, size: Size, application: str) -> Tally:
    async def kill() -> None:
        rig.signal(application)
        await rig.until_whole()

    return await Clients(rig.url, "alone", CLIENTS, await rig.texts()).run(size.requests, kill)


@row("an engine hangs")
async def hangs(rig: Rig, size: Size, seen: Seen) -> None:
    """Its timeout fires, then it is left alone; others go on, and a probe brings it back."""
    victim = rig.signal("stuck", signal.SIGSTOP)
    try:
        tally = await Clients(rig.url, "stuck", 6).run(size.requests // 8)
        seen.must(set(tally.answered) == {"spare"}, f"answered by {dict(tally.answered)}")
        clean(seen, tally, {"first_token_timeout", "total_timeout"})
        seen.must(0 < tally.told.total() <= 18, f"{tally.told.total()} were told")
    finally:
        victim.send_signal(signal.SIGCONT)
    seen.must(await _is_asked_again(rig, "stuck"), "it isn't asked again")
    await rig.until_whole()


@row("pools and routes change")
async def changes(rig: Rig, size: Size, seen: Seen) -> None:
    """No request fails during a rolling update, a change of routes, and when replicas are taken away."""
    pool, ingress = rig.application("steady"), rig.application("ingress")
    engine, [deployment] = pool["args"]["engine_args"], pool["deployments"]
    models = ingress["deployments"][0]["user_config"]["models"]

    async def change() -> None:
        engine["kv_blocks"] = 20_000
        await rig.deploy()
        await asyncio.sleep(1)  # until Serve has begun with it
        await rig.until_whole()
        models["backed"]["pools"].reverse()
        await rig.deploy()
        await asyncio.sleep(3)  # clients come by the new routes meanwhile
        deployment["num_replicas"] = 1
        await rig.deploy()
        await asyncio.sleep(1)  # until Serve has begun with it
        await rig.until_whole()

    try:
        tally = await Clients(rig.url, "backed", CLIENTS, await rig.texts()).run(size.requests, change)
    finally:
        deployment["num_replicas"] = REPLICAS
        models["backed"]["pools"].reverse()
        await rig.deploy()
        await asyncio.sleep(1)  # until Serve has begun with it
        await rig.until_whole()
    clean(seen, tally)
    seen.must(tally.answered["steady"] and tally.answered["spare"], f"answered by {dict(tally.answered)}")


@row("an ingress replica is killed")
async def ingress_killed(rig: Rig, size: Size, seen: Seen) -> None:
    """Its streams end with an error or are cut, never as if they were whole; others answer at once."""
    tally = await _ask_while_one_is_killed(rig, size, "ingress")
    seen.counts.update(tally.counts())
    seen.must(not tally.wrong, f"wrong answers: {dict(tally.wrong)}")
    lost = tally.cut.total() + tally.told.total()
    seen.must(lost <= CLIENTS, f"{lost} were lost, of {CLIENTS} that were under way")
    seen.must(len(rig.server.replicas("ingress")) == INGRESSES, "it isn't whole")

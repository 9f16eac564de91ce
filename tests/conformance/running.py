"""A run: the server and the subjects that it needs, and all checks on each, one after the other."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from deployments.engine import ENDPOINTS
from tests.conformance.server_config import BEHIND, NO_MODEL, model_of
from tests.conformance.subject import Subject
from tests.conformance.suite import Check, Result, carry_out
from tests.conformance.witness import Witness
from tests.live.server import Server

Report = Callable[[str, str, Result, float], None]  # engine, check, result, seconds

DESCRIBED_WITHIN_S = 30.0  # a pool that is up describes itself within a look or two of the ingress
# What a server is taken to have that doesn't say.
_UNTOLD = {
    "endpoints": ENDPOINTS,
    "tools": ("auto", "forced"),
    "json_schema": True,
    "logprobs": True,
    "n": True,
    "parts": ("text",),
}


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
        yield client


async def subject_of(
    client: httpx.AsyncClient, model: str, server: Server | None = None, behind: str = BEHIND
) -> Subject:
    """The subject that serves a model; with its own server, its witness too."""
    document = await _described(client, model)
    [pool, *_] = document.get("pools") or [{}]
    engine = pool.get("engine") or model
    # The openai engine's server is another pool of this server, which computes.
    pools = (pool.get("pool", ""), *([behind] if engine == "openai" else []))
    witness = Witness(server, pools) if server else None
    told = {"context_length": document.get("max_model_len"), **_UNTOLD, **pool}
    return Subject(engine, model, client, told, witness)


async def _described(client: httpx.AsyncClient, model: str) -> dict[str, Any]:
    async with asyncio.timeout(DESCRIBED_WITHIN_S):
        while True:
            response = await client.get(f"/v1/models/{model}")
            response.raise_for_status()
            document: dict[str, Any] = response.json()
            if all(pool["engine"] for pool in document.get("pools", [])):
                return document
            await asyncio.sleep(0.2)  # until the next look


async def run_checks(subject: Subject, checks: Mapping[str, Check], report: Report) -> dict[str, Result]:
    """Every check's result on one subject. One at a time: each sees an engine that does nothing else."""
    results = {}
    for name, chosen in checks.items():
        started = time.monotonic()
        results[name] = await carry_out(chosen, subject)
        report(subject.engine, name, results[name], time.monotonic() - started)
    return results


def in_turns(engines: Collection[str], behind: str = BEHIND) -> list[list[list[str]]]:
    """The engines in groups, one after the other; in a group, chains that run at once; in a chain, engines in turn.

    An engine that computes wants the machine for itself. Those that wait most of the time share it, but for the openai
    engine and the one behind it, whose counts they are.
    """
    waiting = [name for name in engines if waits(name, behind)]
    together = [name for name in waiting if name in ("openai", behind)]
    chains = [together, *([name] for name in waiting if name not in together)]
    return [*([[name]] for name in engines if name not in waiting), [chain for chain in chains if chain]]


def waits(engine: str, behind: str) -> bool:
    """Whether it waits most of the time, since no model computes."""
    return (behind if engine == "openai" else engine) in NO_MODEL


async def run_engines(
    server: Server, engines: Mapping[str, Mapping[str, Check]], report: Report, behind: str = BEHIND
) -> dict[str, dict[str, Result]]:
    """Each engine's checks."""
    results: dict[str, dict[str, Result]] = dict.fromkeys(engines, {})
    async with client_of(server.url) as client:

        async def run_chain(chain: list[str]) -> None:
            for engine in chain:
                subject = await subject_of(client, model_of(engine), server, behind)
                results[engine] = await run_checks(subject, engines[engine], report)

        for group in in_turns(engines, behind):
            await asyncio.gather(*map(run_chain, group))
    return results


async def run_url(url: str, model: str, checks: Mapping[str, Check], report: Report) -> dict[str, dict[str, Result]]:
    """A server that runs already."""
    async with client_of(url.rstrip("/").removesuffix("/v1")) as client:
        subject = await subject_of(client, model)
        return {subject.engine: await run_checks(subject, checks, report)}

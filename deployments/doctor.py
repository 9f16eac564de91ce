"""Tries an engine from start to stop, outside of Ray, in the Python that a pool's replica would have.

`python -m deployments.doctor FD`: reads a pool's settings from standard input, as JSON, and writes what it finds to
the file descriptor, a JSON line each; the engine may print what it likes.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

from deployments import guard, registry, tensorrt_contract
from deployments.config import PoolConfig
from deployments.engine import Endpoint, Engine, EngineRequest, EngineResponse

# Engines that were written to a contract, and what tells how the installed one differs from it.
CONTRACTS: Mapping[str, Callable[[], list[str]]] = {"tensorrt_llm": tensorrt_contract.differences}
STOPPED_WITHIN_S = 15.0
LONG = 2000  # tokens: no answer of so many ends before it is left


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was tried."""

    check: str
    outcome: Literal["pass", "fail", "skip"]
    detail: str = ""


def contract(engine: str) -> Finding | None:
    """Whether the installed package is as the adapter takes it to be; None: the adapter has tests with the real one."""
    if engine not in CONTRACTS:
        return None
    try:
        found = CONTRACTS[engine]()
    except ImportError as error:
        return Finding("contract", "fail", f"the package can't be imported: {error}")
    return Finding("contract", "fail" if found else "pass", "; ".join(found) or "every signature is as expected")


async def examine(pool: PoolConfig) -> AsyncIterator[Finding]:
    """Start the pool's engine, use it in every way, and stop it."""
    if found := contract(pool.engine):
        yield found
    engine = registry.create(pool.engine, pool.pool_model, pool.typed_engine_args())
    started = await _tried("start", engine.start)
    yield started
    try:
        for name, trial in TRIALS.items():
            if started.outcome == "fail":
                yield Finding(name, "skip", "the engine didn't start")
            else:
                yield await _tried(name, lambda trial=trial: trial(engine))  # type: ignore[misc]
    finally:
        stopped = await _tried("stop", engine.stop)
    yield stopped


async def _tried(name: str, work: Callable[[], Awaitable[str | None]]) -> Finding:
    began = time.monotonic()
    try:
        detail = await work()
    except Exception as error:
        return Finding(name, "fail", f"{type(error).__name__}: {error}")
    return Finding(name, "pass", detail or f"{time.monotonic() - began:.1f} s")


def _request(engine: Engine, **fields: Any) -> EngineRequest:
    """A question in the first way of asking that the engine has."""
    endpoint = engine.capabilities().endpoints[0]
    question = "What is the capital of France?"
    asked: Mapping[Endpoint, dict[str, Any]] = {
        "chat/completions": {"messages": [{"role": "user", "content": question}], "temperature": 0, **fields},
        "completions": {"prompt": question, "temperature": 0, **fields},
        "embeddings": {"input": question},
    }
    return EngineRequest(endpoint, json.dumps({"model": "doctor", **asked[endpoint]}).encode(), os.urandom(8).hex())


def _streams(engine: Engine) -> bool:
    return engine.capabilities().endpoints[0] != "embeddings"


async def _answers(engine: Engine) -> str:
    document = json.loads(_bytes(await engine.handle(_request(engine, max_tokens=16))))
    if "data" in document:
        return f"a vector of {len(document['data'][0]['embedding'])} numbers"
    [choice] = document["choices"]
    if not document["usage"]["completion_tokens"]:
        raise ValueError(f"no token is counted in usage: {document['usage']}")
    return repr(choice["message"]["content"] if "message" in choice else choice["text"])


def _bytes(response: EngineResponse) -> bytes:
    if not isinstance(response.body, bytes) or response.status != 200:
        raise ValueError(f"status {response.status}, {response.media_type}: {response.body!r:.300}")
    return response.body


async def _streams_whole(engine: Engine) -> str:
    if not _streams(engine):
        return "it generates no text"
    response = await engine.handle(_request(engine, max_tokens=16, stream=True))
    events = [event async for event in cast("AsyncGenerator[bytes]", response.body)]
    if not b"".join(events).endswith(b"data: [DONE]\n\n"):
        raise ValueError(f"the stream doesn't end with [DONE] but with {events[-1:]!r}")
    return f"{len(events)} pieces"


async def _aborts(engine: Engine) -> str:
    if not _streams(engine):
        return "it generates no text"
    length = engine.capabilities().context_length or 2 * LONG
    response = await engine.handle(_request(engine, max_tokens=min(LONG, length // 2), stream=True))
    async with aclosing(cast("AsyncGenerator[bytes]", response.body)) as body:
        await anext(body)
    began = time.monotonic()
    async with asyncio.timeout(STOPPED_WITHIN_S):
        while (stats := await engine.stats()).running + stats.waiting:  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.01)
    return f"idle {time.monotonic() - began:.2f} s after the client left"


async def _counts(engine: Engine) -> str:
    return ", ".join(f"{name} {value}" for name, value in asdict(await engine.stats()).items() if value is not None)


TRIALS: Mapping[str, Callable[[Engine], Awaitable[str]]] = {
    "answers": _answers,
    "streams": _streams_whole,
    "aborts": _aborts,
    "stats": _counts,
}


async def report(pool: PoolConfig, write: Callable[[str], object]) -> None:
    async for finding in examine(pool):
        write(json.dumps(asdict(finding)) + "\n")


if __name__ == "__main__":
    guard.contain()  # whatever an engine leaves ends with this process
    with os.fdopen(int(sys.argv[1]), "w", buffering=1) as output:
        asyncio.run(report(PoolConfig.model_validate_json(sys.stdin.read()), output.write))

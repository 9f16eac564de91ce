"""An engine called without a server, in the Python that a replica of it would have.

Reads a pool's settings from standard input, then rounds; writes to the file descriptor that is its argument what came
of each: all JSON, a line each.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import cast

from benchmarks.throughput import load
from deployments import guard, registry
from deployments.config import PoolConfig
from deployments.engine import Engine, EngineRequest


async def serve(write_line: int) -> None:
    pool = PoolConfig.model_validate_json(sys.stdin.readline())
    engine = registry.create(pool.engine, pool.pool_model, pool.typed_engine_args())
    await engine.start()
    with os.fdopen(write_line, "w", buffering=1) as output:
        print("{}", file=output)
        try:
            while line := await asyncio.to_thread(sys.stdin.readline):
                done = await load.run(load.Round(**json.loads(line)), Asker(engine, pool.pool_model.served_name).ask)
                print(json.dumps(asdict(done)), file=output)
        finally:
            await engine.stop()


class Asker:
    """Asks the engine as a pool does."""

    def __init__(self, engine: Engine, model: str) -> None:
        self._engine = engine
        self._model = model
        self._asked = 0

    async def ask(self, number: int) -> bytes:
        self._asked += 1
        request = EngineRequest(
            "chat/completions", load.body(self._model, number), f"{os.getpid()}-{self._asked}-{number}"
        )
        response = await self._engine.handle(request)
        return b"".join([chunk async for chunk in cast("AsyncIterator[bytes]", response.body)])


if __name__ == "__main__":
    guard.contain()  # whatever the engine leaves ends with this process
    asyncio.run(serve(int(sys.argv[1])))

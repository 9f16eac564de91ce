"""Enginehouse's row: a pool like any other, of the benchmark's engine. `import_path: benchmarks.gateway.pool:build`."""

import json

from pydantic import BaseModel
from ray.serve import Application

from benchmarks.gateway import engine
from deployments import registry
from deployments.config import PoolConfig
from deployments.engine import Capabilities, Engine, EngineRequest, EngineResponse, EngineStats, PoolModel
from deployments.pool import PoolReplica, deployment
from deployments.registry import EngineSpec


class BenchmarkArgs(BaseModel):
    """`engine_args`: none, for the settings come with each request."""


class BenchmarkEngine(Engine):
    """The engine that all rows have, as a pool's."""

    def __init__(self, model: PoolModel, args: BenchmarkArgs) -> None:
        pass

    async def start(self) -> None:
        pass

    async def handle(self, request: EngineRequest) -> EngineResponse:
        work = engine.work_of(json.loads(request.body))
        if work.stream:
            return EngineResponse(engine.events(work), media_type=engine.MEDIA_TYPE)
        return EngineResponse(await engine.document(work))

    async def health(self) -> None:
        pass

    async def stats(self) -> EngineStats:
        return EngineStats(running=0, waiting=0)

    def capabilities(self) -> Capabilities:
        return Capabilities(endpoints=("chat/completions",))

    async def stop(self) -> None:
        pass


# Wherever this module is imported, and that is where the pool is built and where its replica runs.
registry.register("benchmark", EngineSpec(f"{__name__}:BenchmarkEngine", f"{__name__}:BenchmarkArgs", has_files=False))


class BenchmarkReplica(PoolReplica):
    """A pool's replica, of a class that its process imports from here."""


def build(args: PoolConfig) -> Application:
    options = {"num_cpus": args.num_cpus}
    return deployment.options(func_or_class=BenchmarkReplica, ray_actor_options=options).bind(args.model_dump())

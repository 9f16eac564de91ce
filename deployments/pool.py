"""A pool: the Serve deployment that hosts one engine, and the builder of its application."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, closing
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any, cast

import ray
from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from deployments import environments, guard, registry, replica_port
from deployments.adapter_store import AdapterStore
from deployments.adapters import AdapterSet
from deployments.capabilities import refuse_beyond
from deployments.config import PoolConfig
from deployments.engine import Capabilities, Endpoint, Engine, EngineDeadError, EngineRequest, EngineResponse, PoolModel
from deployments.errors import ApiError, internal_error, unavailable
from deployments.plane.address import ReplyTo
from deployments.plane.line import Lines, ReaderGoneError
from deployments.wire import Description, Head, PlaneOutcome, Refusal, WireRequest, WireResponse, unpack

logger = logging.getLogger("ray.serve")

ENGINE_RESTART_S = 30  # what a client is told to wait while a dead engine's replica is replaced
LAST_WORDS_S = 0.2  # for the clients of a dead engine's streams to be told, before its replica ends


@dataclass(frozen=True, slots=True)
class _Begun:
    """A stream of which the first bytes are there."""

    response: EngineResponse
    first: bytes
    body: AsyncGenerator[bytes]


class Pool:
    """One replica: an engine, and the ways to ask it.

    Ray cancels the call when the client leaves; that closes the engine's stream, which aborts generation.
    """

    def __init__(
        self,
        engine: Engine,
        engine_name: str,
        adapters: AdapterSet | None = None,
        replica_choice: str = "least_outstanding",
    ) -> None:
        self._engine = engine
        self._engine_name = engine_name
        self._adapters = adapters or AdapterSet(engine, PoolModel("", ""))
        self._replica_choice = replica_choice
        self._lines: Lines | None = None

    @cached_property
    def _can(self) -> Capabilities:
        """First asked for by a request, so the engine has started."""
        return self._engine.capabilities()

    async def respond(self, request: WireRequest) -> WireResponse:
        """A whole answer."""
        response = await self._answer(unpack(request))
        if not isinstance(response.body, bytes):
            raise TypeError(f"{request['endpoint']}: the engine streams an answer that was not to be streamed")
        return {**self._head(response), "body": response.body}

    async def relay(self, request: WireRequest, reply_to: ReplyTo) -> WireResponse | PlaneOutcome:
        """An answer as it is made, by the token plane; the call stays open until the answer has ended. What isn't a
        stream, such as an error, comes back by the call."""
        line = await self._lines.to(reply_to["address"]) if self._lines is not None else None
        if line is None:
            return "unreachable"
        begun = await self._begin(request)
        if isinstance(begun, EngineResponse):
            return {**self._head(begun), "body": cast("bytes", begun.body)}
        async with aclosing(begun.body) as body:
            with closing(line.outlet(reply_to["ticket"])) as outlet:
                outlet.head(self._head(begun.response))
                try:
                    await outlet.write(begun.first)
                    async for chunk in body:
                        await outlet.write(chunk)
                except ReaderGoneError:
                    pass  # leaving the body aborts generation
                except Exception as error:
                    outlet.broken()
                    await self._broke(error)
                else:
                    outlet.end()
        return "streamed"

    async def stream(self, request: WireRequest) -> AsyncGenerator[Head | bytes]:
        """As `relay`, by the handle: the answer's head, then its bytes."""
        begun = await self._begin(request)
        if isinstance(begun, EngineResponse):
            yield self._head(begun)
            yield cast("bytes", begun.body)
            return
        async with aclosing(begun.body) as body:
            yield self._head(begun.response)
            yield begun.first
            try:
                async for chunk in body:
                    yield chunk
            except Exception as error:
                await self._broke(error)
                raise

    async def _broke(self, error: Exception) -> None:
        """An answer has broken after it had begun."""
        if not isinstance(error, EngineDeadError):
            logger.error("the engine failed while it answered", exc_info=error)
        await self._or_death(error)

    async def _or_death(self, error: Exception) -> Exception:
        """The engine's death where it has died, which it may have put in other words; else the error."""
        if not isinstance(error, EngineDeadError):
            try:
                await self._engine.health()
            except Exception as why:
                error = why
        if isinstance(error, EngineDeadError):
            self._died(error)
        return error

    async def _begin(self, request: WireRequest) -> "EngineResponse | _Begun":
        """An answer up to its first bytes, so that an engine that fails before them gives an error's status; one that
        is whole as it is."""
        response = await self._answer(unpack(request))
        if isinstance(response.body, bytes):
            return response
        body = cast("AsyncGenerator[bytes]", response.body)
        try:
            return _Begun(response, await anext(body, b""), body)
        except Exception as error:
            await body.aclose()
            return await self._failure(error, request["endpoint"])
        except BaseException:
            await body.aclose()
            raise

    async def _answer(self, request: EngineRequest) -> EngineResponse:
        try:
            self._adapters.refuse_absent(request.adapter)
            refuse_beyond(self._can, request, self._engine_name)
            return await self._engine.handle(request)
        except Exception as error:
            return await self._failure(error, request.endpoint)

    async def _failure(self, error: Exception, endpoint: Endpoint) -> EngineResponse:
        if not (isinstance(error, ApiError) and error.status != 500):
            cause = await self._or_death(error)
            if isinstance(cause, EngineDeadError):
                await self._end()
                error = cause
        return _envelope(error, endpoint)

    def _died(self, error: EngineDeadError) -> None:
        """The engine is dead. May be called several times."""
        logger.error("%s", error)

    async def _end(self) -> None:
        """Wait until this replica has ended, if it does."""

    def _head(self, response: EngineResponse) -> Head:
        headers = {**response.headers, **self._engine.headers, "x-enginehouse-engine": self._engine_name}
        return {"status": response.status, "media_type": response.media_type, "headers": headers}

    async def stats(self) -> dict[str, Any]:
        return asdict(await self._engine.stats())

    async def describe(self) -> Description:
        return {
            "engine": self._engine_name,
            "capabilities": asdict(self._can),
            "adapters": self._adapters.configured,
            "replica_choice": self._replica_choice,
        }

    async def check_adapter(self, name: str, path: str) -> Refusal | None:
        """Why an adapter can't be loaded live here; None if it can. Nothing changes."""
        try:
            await asyncio.to_thread(self._adapters.check, name, path)
        except ApiError as error:
            return {"message": error.message, "param": error.param, "code": error.code}
        return None

    async def update_adapters(self) -> Mapping[str, str]:
        """Have the adapters that there should be now. Those that can't be loaded, with the reason."""
        return await self._adapters.reconcile()

    async def check_health(self) -> None:
        try:
            await self._engine.health()
        except EngineDeadError as error:
            self._died(error)
            raise
        self._adapters.look()


def _envelope(error: Exception, endpoint: Endpoint) -> EngineResponse:
    """The envelope for what went wrong before the first byte."""
    match error:
        case ApiError():
            api_error = error
        case EngineDeadError():
            api_error = unavailable("The engine failed and is being replaced.", "engine_dead", ENGINE_RESTART_S)
        case _:
            logger.error("the engine failed a request", exc_info=error)
            api_error = internal_error()
    body = api_error.anthropic_body() if endpoint == "messages" else api_error.body()
    return EngineResponse(body, api_error.status, headers=api_error.headers)


class PoolReplica(Pool):
    """A `Pool` in a Serve replica, which starts and stops the engine.

    When the engine dies, the replica ends at once: Serve replaces it without waiting for health checks to fail, and
    routers know that it is gone, instead of sending more to where answers come fast. Requests of which nothing was sent
    are lost with it, so that the ingress asks another replica.
    """

    _ending: asyncio.TimerHandle | None = None

    async def __init__(self, config: dict[str, Any]) -> None:  # type: ignore[misc]  # Serve awaits it
        guard.contain()
        replica_port.bind_to_node()
        pool = PoolConfig.model_validate(config)
        logger.info("GPUs of this replica: %s", os.environ.get("CUDA_VISIBLE_DEVICES", "not limited by Ray") or "none")
        engine = registry.create(pool.engine, pool.pool_model, pool.typed_engine_args())
        read_live = partial(AdapterStore().paths, serve.get_replica_context().app_name)
        adapters = AdapterSet(engine, pool.pool_model, pool.adapters, pool.adapters_folder, read_live)
        super().__init__(engine, pool.engine, adapters, pool.replica_choice)
        await self._engine.start()
        await self._adapters.start()
        self._lines = Lines(ray.get_runtime_context().get_node_id())

    def _died(self, error: EngineDeadError) -> None:
        if self._ending is None:
            logger.error("this replica ends, for its engine is dead: %s", error)
            self._ending = asyncio.get_running_loop().call_later(LAST_WORDS_S, os._exit, 1)

    async def _end(self) -> None:
        await asyncio.Event().wait()

    async def __del__(self) -> None:
        if hasattr(self, "_engine"):
            await self._adapters.stop()
            await self._engine.stop()
            if self._lines is not None:
                self._lines.stop()


deployment = serve.deployment(
    name="Pool",
    # Ray's own default of 5 starves an engine that batches.
    max_ongoing_requests=256,
    health_check_period_s=5,
    health_check_timeout_s=30,
    graceful_shutdown_timeout_s=60,
)(PoolReplica)


def build(args: PoolConfig) -> Application:
    """The application of a pool, for `import_path: deployments.pool:build`."""
    need = args.need  # which refuses what doesn't fit before a replica is started for it
    # All of a replica's GPUs are the actor's own: on one node, and seen by it and its engine's processes alone.
    options: dict[str, Any] = {"num_cpus": need.cpus, "num_gpus": need.gpus, "label_selector": dict(need.labels)}
    if need.gpu_type is not None:
        options["accelerator_type"] = need.gpu_type
    if args.engine in environments.ENGINES:
        # A launcher on PATH, so that one config serves every node: see deployments/environments.py.
        options["runtime_env"] = {"py_executable": f"engine-python {args.engine}"}
    return deployment.options(ray_actor_options=options, request_router_config=router_config(args)).bind(
        args.model_dump()
    )


def router_config(args: PoolConfig) -> RequestRouterConfig:
    """How the ingress chooses a replica of this pool, as settings only: see deployments/replica_choice/routers.py."""
    settings = args.prefix.model_dump() if args.replica_choice == "prefix" else {}
    kwargs = {"replica_choice": args.replica_choice, **settings}
    return RequestRouterConfig.model_validate({"request_router_kwargs": kwargs})

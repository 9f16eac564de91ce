"""Loading and unloading LoRA adapters while pools run: the two endpoints, and what they do in which order."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, ValidationError
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from app.access.guard import admins_only
from app.asgi import read_body
from app.config import IngressConfig
from app.openapi import request_body
from app.pools import PoolDirectory
from app.routing import names
from app.routing.settings import ModelConfig
from deployments.adapter_store import LiveAdapter
from deployments.config import AdapterName, AdapterPath
from deployments.errors import ApiError, from_validation_error, unavailable

logger = logging.getLogger("ray.serve")

UPDATE_S = 300  # for all replicas to read an adapter's weights


class LoadRequest(BaseModel):
    """The body of `/v1/load_lora_adapter`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    lora_name: AdapterName
    lora_path: AdapterPath
    model: str | None = None


class UnloadRequest(BaseModel):
    """The body of `/v1/unload_lora_adapter`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    lora_name: str
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """Where an adapter is to be loaded."""

    model: str
    pools: tuple[str, ...]


class Gateway(Protocol):
    """What the endpoints need of the ingress."""

    config: IngressConfig
    pools: PoolDirectory


def choose_target(model: str | None, models: Mapping[str, ModelConfig], pools: PoolDirectory) -> Target | None:
    """The pools to load an adapter into: of `model`, or of the one that can be meant. None: those aren't ready.

    Raises:
        ApiError: no such model, none of its pools takes adapters, or it isn't clear which model is meant.
    """
    if model is None:
        first_named = {pool: name for name in reversed(list(models)) for pool in models[name].pools}
        meant = sorted({name for pool, name in first_named.items() if pools.takes_adapters(pool)})
        if len(meant) > 1:
            message = f"Several models take adapters: say for which, in 'model'. There are: {', '.join(meant)}."
            raise ApiError(400, message, param="model", code="missing_parameter")
        candidates, of = list(first_named), ""
        model = meant[0] if meant else None
    else:
        candidates, of = list(names.pools_of(model, models)), f" of '{model}'"
    if all(pools.refuses_adapters(pool) for pool in candidates):
        raise ApiError(400, f"No pool{of} takes adapters.", param="model", code="unsupported_parameter")
    if model is None:
        return None
    takers = tuple(pool for pool in models[model].pools if pools.takes_adapters(pool))
    return Target(model, takers) if takers else None


class AdapterApi:
    """Changes in an order that leaves nothing half done: check everywhere, claim the name, have it done, show it."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._pools = gateway.pools

    async def load(self, wanted: LoadRequest) -> dict[str, Any]:
        """Load an adapter on every replica of its pools, or on none.

        Raises:
            ApiError: why not; nothing has changed then.
        """
        name, models = wanted.lora_name, self._gateway.config.models
        await self._pools.refresh_adapters()
        if name in models or name in self._pools.adapters():
            raise _taken(name)
        target = choose_target(wanted.model, models, self._pools)
        if target is None:
            raise self._unavailable("No pool that may take the adapter is ready.", "pool_not_ready")
        for _, refusal in await self._ask(target.pools, "check_adapter", name, wanted.lora_path):
            if refusal is not None:
                raise ApiError(400, refusal["message"], param=refusal["param"], code=refusal["code"])
        adapter = LiveAdapter(path=wanted.lora_path, model=target.model, pools=target.pools)
        if not await asyncio.to_thread(self._pools.store.claim, name, adapter):
            raise _taken(name)
        try:
            for pool, failed in await self._ask(target.pools, "update_adapters"):
                if name in failed:
                    raise ApiError(400, f"The pool '{pool}': {failed[name]}", param="lora_path", code="invalid_adapter")
            await asyncio.to_thread(self._pools.store.replace, name, adapter.model_copy(update={"ready": True}))
        except BaseException:
            await self._withdraw(name, target.pools)
            raise
        await self._pools.refresh_adapters()
        return {"id": name, "object": "model", "parent": target.model, "pools": list(target.pools)}

    async def unload(self, wanted: UnloadRequest) -> dict[str, Any]:
        """Unload an adapter that was loaded live. Requests that are under way are answered.

        Raises:
            ApiError: there is none.
        """
        name = wanted.lora_name
        found = (await asyncio.to_thread(self._pools.store.read)).get(name)
        if found is None or wanted.model not in (None, found.model):
            shown = names.shorten(name)
            if name in self._pools.adapters() and found is None:
                message = (
                    f"The adapter '{shown}' is listed in its pool's configuration; only a change of that unloads it."
                )
                raise ApiError(400, message, param="lora_name", code="not_live")
            of = f" for '{names.shorten(wanted.model)}'" if wanted.model else ""
            raise ApiError(404, f"No adapter '{shown}' was loaded{of}.", param="lora_name", code="adapter_not_found")
        await self._withdraw(name, found.pools)
        return {"id": name, "object": "model", "deleted": True}

    async def _withdraw(self, name: str, pools: Sequence[str]) -> None:
        """Take an adapter away: first from routing, then from the replicas, which catch up if they don't hear this."""
        await asyncio.to_thread(self._pools.store.remove, name)
        await self._pools.refresh_adapters()
        try:
            await self._ask(pools, "update_adapters")
        except ApiError as error:
            logger.warning("not every replica was told to unload the adapter %s: %s", name, error)

    async def _ask(self, pools: Iterable[str], method: str, *arguments: str) -> list[tuple[str, Any]]:
        """Call a method of every replica of `pools`. Each answer, with its pool.

        Raises:
            ApiError: 503; a replica gave none.
        """
        return [
            (pool, answer)
            for answers in await asyncio.gather(*(self._broadcast(pool, method, arguments) for pool in pools))
            for pool, answer in answers
        ]

    async def _broadcast(self, pool: str, method: str, arguments: Sequence[str]) -> list[tuple[str, Any]]:
        try:
            call = self._pools.handle(pool).broadcast(method, *arguments)
            return [(pool, answer) for answer in await call.results_async(timeout_s=UPDATE_S)]
        except (RayError, RayServeException, TimeoutError) as error:
            logger.warning("pool %s gave no answer to %s: %r", pool, method, error)
            raise self._unavailable(f"Not every replica of the pool '{pool}' answered.", "replica_lost") from error

    def _unavailable(self, message: str, code: str) -> ApiError:
        return unavailable(message, code, self._gateway.config.retry_after_s)


def _taken(name: str) -> ApiError:
    message = f"'{name}' is the name of a model or an adapter already; unload that first, or choose another name."
    return ApiError(400, message, param="lora_name", code="name_taken")


def add_adapters(app: FastAPI, gateway: Gateway) -> None:
    """The two endpoints. They change the server: they are for its operators."""
    api = AdapterApi(gateway)
    for_admins: Any = {"tags": ["adapters"], "dependencies": [Depends(admins_only)]}

    async def parse(request: Request, schema: type[BaseModel]) -> Any:
        body = await read_body(request.receive, gateway.config.max_body_bytes, gateway.config.body_timeout_s)
        try:
            return schema.model_validate_json(body)
        except ValidationError as error:
            raise from_validation_error(error, schema.model_fields) from None

    @app.post("/v1/load_lora_adapter", openapi_extra=request_body(LoadRequest), **for_admins)
    async def load_lora_adapter(request: Request) -> Response:
        """Load a LoRA adapter, which is a model name of its own from then on."""
        wanted: LoadRequest = await parse(request, LoadRequest)
        return JSONResponse(await _to_the_end(api.load(wanted)))

    @app.post("/v1/unload_lora_adapter", openapi_extra=request_body(UnloadRequest), **for_admins)
    async def unload_lora_adapter(request: Request) -> Response:
        """Unload a LoRA adapter that was loaded live."""
        wanted: UnloadRequest = await parse(request, UnloadRequest)
        return JSONResponse(await _to_the_end(api.unload(wanted)))


_running: set["asyncio.Task[Any]"] = set()  # the event loop itself keeps no task alive


async def _to_the_end(work: Any) -> Any:
    """What `work` gives; a client that leaves doesn't stop it half done."""
    task = asyncio.create_task(work)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return await asyncio.shield(task)

"""The ingress's endpoints: OpenAI's API over the pools. Bytes in, bytes out; what it adds goes into headers."""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from app import routing
from app.adapter_api import add_adapters
from app.asgi import Client, read_body, send_error, send_stream, send_whole
from app.calls import Caller
from app.capabilities import model_document
from app.config import IngressConfig
from app.endpoints import ANTHROPIC_PATHS, ROUTES
from app.openapi import request_body
from app.pools import PoolDirectory
from deployments.engine import Endpoint, EngineRequest
from deployments.errors import ApiError, anthropic_error_event, error_event, internal_error, unavailable
from deployments.plane.hub import StreamLostError
from deployments.replica_choice.prefix import body_blocks
from deployments.wire import pack

logger = logging.getLogger("ray.serve")

DESCRIPTION = "One door, many engines: OpenAI's API over pools of vLLM, SGLang, TensorRT-LLM, TGI and Transformers."


class Gateway:
    """What the endpoints share: the live configuration, the pools, and the way to ask them."""

    def __init__(self, pools: PoolDirectory, caller: Caller | None = None) -> None:
        self.config = IngressConfig()
        self.pools = pools
        self.caller = caller or Caller()
        self.started = int(time.time())

    async def answer(self, endpoint: Endpoint, receive: Receive, send: Send) -> None:
        """Route a request to a pool, in one handle call, and pass its answer back.

        Raises:
            ApiError: it can't be; nothing was sent.
        """
        body = await read_body(receive, self.config.max_body_bytes)
        wanted = routing.read_request(body)
        pool = self._choose(wanted.model)
        adapter = None if wanted.model in self.config.models else wanted.model
        # An id of our own: engines need it unique, and a client may choose Serve's by sending x-request-id.
        wire = pack(EngineRequest(endpoint, body, uuid.uuid4().hex, adapter))
        if self.pools.chooses_by_prefix(pool):
            # By the pool's name: it has one model, which clients may know by several.
            wire["prefix"] = body_blocks(endpoint, body, pool, adapter)
        try:
            handle = self.pools.handle(pool)
            if wanted.stream:
                stream = await self.caller.stream(pool, handle, wire, plane=self.config.token_plane)
            else:
                answer = await self.caller.whole(handle, wire)
        except BackPressureError as error:
            message = f"The pool '{pool}' has as many requests as it may queue."
            headers = {"retry-after": str(self.config.retry_after_s)}
            raise ApiError(429, message, type="rate_limit_error", code="queue_full", headers=headers) from error
        except (RayError, RayServeException, StreamLostError) as error:
            logger.warning("pool %s gave no answer: %r", pool, error)
            self.pools.look_soon()
            message = f"The pool '{pool}' lost the replica that had this request."
            raise unavailable(message, "replica_lost", self.config.retry_after_s) from error
        if wanted.stream:
            await send_stream(send, stream, pool, anthropic_error_event if endpoint == "messages" else error_event)
        else:
            await send_whole(send, answer, pool)

    def _choose(self, model: str) -> str:
        pools = self._pools_of(model)
        if pool := self.pools.first_ready(pools):
            return pool
        states = ", ".join(f"'{pool}' is {self.pools.state(pool).reason}" for pool in pools)
        raise unavailable(f"No pool of '{model}' is ready: {states}.", "pool_not_ready", self.config.retry_after_s)

    def adapters(self) -> dict[str, Sequence[str]]:
        """The adapters that clients may name, each with its pools."""
        return routing.exposed_adapters(self.pools.adapters(), self.config.models)

    def _pools_of(self, model: str) -> Sequence[str]:
        adapters = {} if model in self.config.models else self.adapters()
        return routing.pools_of(model, self.config.models, adapters)

    def model_document(self, name: str) -> dict[str, Any]:
        """What is known of a model or an adapter.

        Raises:
            ApiError: 404, there is none of that name.
        """
        names = self._pools_of(name)
        pools = [self.pools.document(pool) for pool in names]
        openai = {"object": "model", "created": self.started, "owned_by": "enginehouse"}
        if name not in self.config.models:
            openai |= dict.fromkeys(("root", "parent"), routing.parent_of(names, self.config.models))
        return {**model_document(name, pools), **openai}


class Answering:
    """The ASGI application of one endpoint: what it does for each request is what a request costs."""

    def __init__(self, gateway: Gateway, endpoint: Endpoint) -> None:
        self._gateway = gateway
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = Client(receive)
        try:
            await self._gateway.answer(self._endpoint, client.receive, send)
        except asyncio.CancelledError:
            if not client.took_back():
                raise  # by others, who want to see it
        except ApiError as error:
            await send_error(send, error, anthropic=self._endpoint == "messages")
        except Exception as error:
            logger.error("the ingress failed", exc_info=error)
            await send_error(send, internal_error(), anthropic=self._endpoint == "messages")
        finally:
            client.forget()


class Door:
    """The ingress's ASGI application: requests for answers are short of everything that isn't needed for them, the
    others are the framework's."""

    def __init__(self, gateway: Gateway, framework: FastAPI) -> None:
        self.framework = framework
        self.routes = framework.routes  # by which Serve names requests in its metrics
        self._answering = {path: Answering(gateway, route.endpoint) for route in ROUTES for path in route.paths}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = self._answering.get(scope.get("path", ""))
        if answering is not None and scope["type"] == "http" and scope["method"] == "POST":
            await answering(scope, receive, send)
        else:
            await self.framework(scope, receive, send)


def create_app(gateway: Gateway) -> Door:
    """The ASGI application of an ingress replica."""
    app = FastAPI(title="Enginehouse", description=DESCRIPTION, version="0.1.0")
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_unexpected)
    _add_generation(app, gateway)
    _add_models(app, gateway)
    add_adapters(app, gateway)
    _add_probes(app, gateway)
    return Door(gateway, app)


def _add_generation(app: FastAPI, gateway: Gateway) -> None:
    for route in ROUTES:
        for index, path in enumerate(route.paths):
            app.add_api_route(
                path,
                _asking(Answering(gateway, route.endpoint), route.endpoint),
                methods=["POST"],
                tags=["generate"],
                summary=route.summary,
                include_in_schema=index == 0,  # the other paths are aliases
                openapi_extra=request_body(route.schema) if route.schema else None,
            )


def _asking(answering: Answering, endpoint: Endpoint) -> Callable[[], Awaitable[Response]]:
    """The endpoint, as the framework and its /docs know it."""

    async def ask() -> Response:
        return _Passed(answering)

    ask.__name__ = endpoint.replace("/", "_")  # the operation's name in /docs
    return ask


class _Passed(Response):
    """What another ASGI application answers."""

    def __init__(self, application: ASGIApp) -> None:
        super().__init__()
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._application(scope, receive, send)


def _add_models(app: FastAPI, gateway: Gateway) -> None:
    @app.get("/v1/models", tags=["models"])
    async def list_models() -> JSONResponse:
        """The models there are, ready or not."""
        names = sorted({*gateway.config.models, *gateway.adapters()})
        return JSONResponse({"object": "list", "data": [gateway.model_document(name) for name in names]})

    @app.get("/v1/models/{model:path}", tags=["models"])
    async def get_model(model: str) -> JSONResponse:
        """One model; 404 where there is none of that name."""
        return JSONResponse(gateway.model_document(model))


def _add_probes(app: FastAPI, gateway: Gateway) -> None:
    @app.get("/health", tags=["probes"])
    async def health() -> JSONResponse:
        """200: this ingress is alive. It says nothing of the pools."""
        return JSONResponse({"status": "ok"})

    @app.get("/ready", tags=["probes"])
    async def ready() -> JSONResponse:
        """200 once at least one pool can answer, else 503; with each pool's state."""
        names = {pool for model in gateway.config.models.values() for pool in model.pools}
        states = {name: gateway.pools.state(name) for name in sorted(names)}
        ready = any(state.ready for state in states.values())
        headers = {} if ready else {"retry-after": str(gateway.config.retry_after_s)}
        document = {"ready": ready, "pools": {name: state.reason for name, state in states.items()}}
        return JSONResponse(document, 200 if ready else 503, headers)


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    body = error.anthropic_body() if request.url.path in ANTHROPIC_PATHS else error.body()
    return Response(body, error.status, error.headers, "application/json")


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """FastAPI's own errors, in OpenAI's envelope."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {routing.shorten(request.url.path)}"
    message = f"No such endpoint: {what}." if error.status_code == 404 else f"{what}: {error.detail}."
    return await _on_api_error(request, ApiError(error.status_code, message, headers=error.headers))


async def _on_unexpected(request: Request, error: Exception) -> Response:
    logger.error("the ingress failed", exc_info=error)
    return await _on_api_error(request, internal_error())

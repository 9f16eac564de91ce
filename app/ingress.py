"""The ingress's endpoints: OpenAI's API over the pools. Bytes in, bytes out; what it adds goes into headers."""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, cast

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from app import routing
from app.adapter_api import add_adapters
from app.capabilities import model_document
from app.config import IngressConfig
from app.endpoints import ANTHROPIC_PATHS, ROUTES
from app.openapi import request_body
from app.pools import PoolDirectory
from deployments.engine import Endpoint, EngineRequest
from deployments.errors import ApiError, anthropic_error_event, error_event, internal_error, unavailable
from deployments.wire import Head, WireRequest, WireResponse, pack

logger = logging.getLogger("ray.serve")

DESCRIPTION = "One door, many engines: OpenAI's API over pools of vLLM, SGLang, TensorRT-LLM, TGI and Transformers."


class Gateway:
    """What the endpoints share: the live configuration, and the pools."""

    def __init__(self, pools: PoolDirectory) -> None:
        self.config = IngressConfig()
        self.pools = pools
        self.started = int(time.time())

    async def answer(self, endpoint: Endpoint, request: Request) -> Response:
        """Route a request to a pool, in one handle call, and pass its answer back."""
        body = await read_body(request, self.config.max_body_bytes)
        wanted = routing.read_request(body)
        pool = self._choose(wanted.model)
        adapter = None if wanted.model in self.config.models else wanted.model
        # An id of our own: engines need it unique, and a client may choose Serve's by sending x-request-id.
        wire = pack(EngineRequest(endpoint, body, uuid.uuid4().hex, adapter))
        try:
            handle = self.pools.handle(pool)
            return await (_streamed if wanted.stream else _whole)(handle, pool, wire)
        except BackPressureError as error:
            message = f"The pool '{pool}' has as many requests as it may queue."
            headers = {"retry-after": str(self.config.retry_after_s)}
            raise ApiError(429, message, type="rate_limit_error", code="queue_full", headers=headers) from error
        except (RayError, RayServeException) as error:
            logger.warning("pool %s gave no answer: %r", pool, error)
            message = f"The pool '{pool}' lost the replica that had this request."
            raise unavailable(message, "replica_lost", self.config.retry_after_s) from error

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


async def read_body(request: Request, limit: int) -> bytes:
    """A request's body.

    Raises:
        ApiError: 413, as soon as it is longer than `limit` bytes; 499, which nobody reads, where the client left.
    """
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise ApiError(413, f"The request body is larger than {limit} bytes.", code="body_too_large")
            chunks.append(chunk)
    except ClientDisconnect:
        raise ApiError(499, "The client left while it sent its request.") from None
    return b"".join(chunks)


async def _whole(handle: Any, pool: str, wire: WireRequest) -> Response:
    call = handle.respond.remote(wire)
    try:
        answer = cast(WireResponse, await call)
    except asyncio.CancelledError:
        call.cancel()
        raise
    return Response(answer["body"], answer["status"], _headers(pool, answer), answer["media_type"])


async def _streamed(handle: Any, pool: str, wire: WireRequest) -> Response:
    stream = handle.options(stream=True).stream.remote(wire)
    try:
        head = cast(Head, await anext(stream))
    except asyncio.CancelledError:
        stream.cancel()
        raise
    broken = anthropic_error_event if wire["endpoint"] == "messages" else error_event
    return _Relay(stream, broken, head["status"], _headers(pool, head), head["media_type"])


class _Relay(StreamingResponse):
    """The rest of a pool's stream; the pool is told when nobody reads it any more."""

    def __init__(
        self,
        stream: Any,
        broken: Callable[[str, str], bytes],  # makes the event for a stream that breaks
        status: int,
        headers: dict[str, str],
        media_type: str,
    ) -> None:
        super().__init__(self._relay(), status, headers, media_type)
        self._stream = stream
        self._broken = broken
        self._ended = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Here, not in the generator: that may be left before it starts, or while it waits for a client to read.
        try:
            await super().__call__(scope, receive, send)
        finally:
            if not self._ended:
                self._stream.cancel()

    async def _relay(self) -> AsyncGenerator[bytes]:
        try:
            async for chunk in self._stream:
                yield chunk
        except Exception as error:
            logger.warning("a stream broke: %r", error)
            yield self._broken("The engine was lost while it answered.", "engine_lost")
        self._ended = True


def _headers(pool: str, head: Head) -> dict[str, str]:
    return {**head["headers"], "x-enginehouse-pool": pool}


def create_app(gateway: Gateway) -> FastAPI:
    """The ASGI application of an ingress replica."""
    app = FastAPI(title="Enginehouse", description=DESCRIPTION, version="0.1.0")
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_unexpected)
    _add_generation(app, gateway)
    _add_models(app, gateway)
    add_adapters(app, gateway, read_body)
    _add_probes(app, gateway)
    return app


def _add_generation(app: FastAPI, gateway: Gateway) -> None:
    for route in ROUTES:
        for index, path in enumerate(route.paths):
            app.add_api_route(
                path,
                _asking(gateway, route.endpoint),
                methods=["POST"],
                tags=["generate"],
                summary=route.summary,
                include_in_schema=index == 0,  # the other paths are aliases
                openapi_extra=request_body(route.schema) if route.schema else None,
            )


def _asking(gateway: Gateway, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    async def ask(request: Request) -> Response:
        return await gateway.answer(endpoint, request)

    ask.__name__ = endpoint.replace("/", "_")  # the operation's name in /docs
    return ask


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

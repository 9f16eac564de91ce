"""The ingress's endpoints: OpenAI's API over the pools. Bytes in, bytes out; what it adds goes into headers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from app.access.guard import Guard, key_of, too_long
from app.access.keys import may_see
from app.access.visit import Visit
from app.adapter_api import add_adapters
from app.asgi import Client, send_error
from app.asking import Told
from app.endpoints import ANTHROPIC_PATHS, ROUTES
from app.gateway import Gateway
from app.openapi import request_body
from app.routing import names
from deployments.engine import Endpoint
from deployments.errors import ApiError, internal_error

logger = logging.getLogger("ray.serve")

DESCRIPTION = "One door, many engines: OpenAI's API over pools of vLLM, SGLang, TensorRT-LLM, TGI and Transformers."


class Answering:
    """The ASGI application of one endpoint: what it does for each request is what a request costs."""

    def __init__(self, gateway: Gateway, endpoint: Endpoint) -> None:
        self._gateway = gateway
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client, told = Client(receive), Told()
        visit: Visit | None = None
        try:
            visit = self._gateway.access.visit(scope["headers"])
            send = visit.listen(send)
            await self._gateway.answer(self._endpoint, scope, client.receive, send, told, visit)
        except asyncio.CancelledError:
            if not client.took_back():
                raise  # by others, who want to see it
        except ApiError as error:
            error.headers = {**told, **error.headers}
            await send_error(send, error, anthropic=self._endpoint == "messages")
        except Exception as error:
            logger.error("the ingress failed", exc_info=error)
            await send_error(send, internal_error(), anthropic=self._endpoint == "messages")
        finally:
            client.forget()
            if visit is not None:
                visit.leave()


class Door:
    """The ingress's ASGI application: requests for answers are short of everything that isn't needed for them, the
    others are the framework's."""

    def __init__(self, gateway: Gateway, framework: FastAPI) -> None:
        self.framework = framework
        self.routes = framework.routes  # by which Serve names requests in its metrics
        self._answering = {path: Answering(gateway, each.endpoint) for each in ROUTES for path in each.paths}
        self._guarded = Guard(framework, gateway.access)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (error := too_long(scope["headers"])) is not None:
            await send_error(send, error, anthropic=scope.get("path") in ANTHROPIC_PATHS)
            return
        answering = self._answering.get(scope.get("path", ""))
        if answering is not None and scope["type"] == "http" and scope["method"] == "POST":
            await answering(scope, receive, send)
        else:
            await self._guarded(scope, receive, send)


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
    for endpoint in ROUTES:
        for index, path in enumerate(endpoint.paths):
            app.add_api_route(
                path,
                _asking(Answering(gateway, endpoint.endpoint), endpoint.endpoint),
                methods=["POST"],
                tags=["generate"],
                summary=endpoint.summary,
                include_in_schema=index == 0,  # the other paths are aliases
                openapi_extra=request_body(endpoint.schema) if endpoint.schema else None,
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
    async def list_models(request: Request) -> JSONResponse:
        """The models there are, ready or not, of those that the key may know of."""
        key = key_of(request.scope)
        aliases = (name for name in gateway.config.aliases if not names.is_pattern(name))
        every = sorted({*gateway.config.models, *gateway.adapters(), *aliases})
        return JSONResponse(
            {"object": "list", "data": [gateway.model_document(name) for name in every if key.sees(name)]}
        )

    @app.get("/v1/models/{model:path}", tags=["models"])
    async def get_model(request: Request, model: str) -> JSONResponse:
        """One model; 404 where there is none of that name."""
        if not request.scope["path"].endswith(model):  # the framework's patterns leave out a last line end
            model += "\n"
        may_see(key_of(request.scope), model, gateway.knows)
        return JSONResponse(gateway.model_document(model))


def _add_probes(app: FastAPI, gateway: Gateway) -> None:
    @app.get("/health", tags=["probes"])
    async def health() -> JSONResponse:
        """200: this ingress is alive. It says nothing of the pools."""
        return JSONResponse({"status": "ok"})

    @app.get("/ready", tags=["probes"])
    async def ready() -> JSONResponse:
        """200 once at least one pool can answer, else 503; with each pool's state."""
        pools = {pool for model in gateway.config.models.values() for pool in model.pools}
        states = {name: gateway.pools.state(name) for name in sorted(pools)}
        ready = any(state.ready for state in states.values())
        headers = {} if ready else {"retry-after": str(gateway.config.retry_after_s)}
        document = {"ready": ready, "pools": {name: str(state) for name, state in states.items()}}
        return JSONResponse(document, 200 if ready else 503, headers)


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    body = error.anthropic_body() if request.url.path in ANTHROPIC_PATHS else error.body()
    return Response(body, error.status, error.headers, "application/json")


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """FastAPI's own errors, in OpenAI's envelope."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {names.shorten(request.url.path)}"
    message = f"No such endpoint: {what}." if error.status_code == 404 else f"{what}: {error.detail}."
    return await _on_api_error(request, ApiError(error.status_code, message, headers=error.headers))


async def _on_unexpected(request: Request, error: Exception) -> Response:
    logger.error("the ingress failed", exc_info=error)
    return await _on_api_error(request, internal_error())

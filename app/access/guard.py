"""What stands before the ingress's endpoints: a key for all that isn't open, an admin's for what changes the server."""

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from app.access.access import Access
from app.access.keys import Key, must_be_admin
from app.asgi import send_error
from app.endpoints import ANTHROPIC_PATHS, OPEN_PATHS
from app.routing.route import Headers
from deployments.errors import ApiError

MAX_HEADER_BYTES = 64 * 1024  # HAProxy takes 15 KiB; Serve's own proxy has no limit
_KEY = "enginehouse.key"  # in an ASGI scope


class Guard:
    """The ASGI application before another: who comes in has a key, but to what is open, and the other finds it."""

    def __init__(self, inner: ASGIApp, access: Access) -> None:
        self._inner = inner
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if scope["type"] == "http" and path not in OPEN_PATHS:
            try:
                scope[_KEY] = self._access.find(scope["headers"])
            except ApiError as error:
                await send_error(send, error, anthropic=path in ANTHROPIC_PATHS)
                return
        await self._inner(scope, receive, send)


def key_of(scope: Scope) -> Key:
    """Who asks, of a request that came through a `Guard`."""
    key: Key = scope[_KEY]
    return key


async def admins_only(request: Request) -> None:
    """What a route depends on that changes the server.

    Raises:
        ApiError: 403.
    """
    must_be_admin(key_of(request.scope))


def too_long(headers: Headers) -> ApiError | None:
    """The 431 for headers that nobody sends in earnest."""
    if sum(len(name) + len(value) for name, value in headers) <= MAX_HEADER_BYTES:
        return None
    return ApiError(431, f"The request's headers are larger than {MAX_HEADER_BYTES} bytes.", code="headers_too_large")

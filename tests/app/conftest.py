"""The ingress's application over a module's own `gateway`, and a client of it."""

from collections.abc import AsyncIterator

import httpx
import pytest

from app.gateway import Gateway
from app.ingress import Door, create_app


@pytest.fixture
def app(gateway: Gateway) -> Door:
    return create_app(gateway)


@pytest.fixture
async def client(app: Door) -> AsyncIterator[httpx.AsyncClient]:
    # An unexpected exception is raised again once it is answered, for the server's log.
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://ingress") as client:
        yield client

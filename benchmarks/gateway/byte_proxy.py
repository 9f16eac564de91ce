"""The least that a gateway in Python costs: uvicorn and FastAPI, passing bytes on to one server."""

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiohttp
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

# A hop's own, of the headers that a client sends.
_OF_THE_HOP = frozenset({"host", "content-length", "connection", "transfer-encoding", "accept-encoding"})


def create_app(upstream: str) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as session:
            app.state.session = session
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/v1/{path:path}")
    async def forward(path: str, request: Request) -> Response:
        headers = {name: value for name, value in request.headers.items() if name not in _OF_THE_HOP}
        body = await request.body()
        reply = await request.app.state.session.post(f"{upstream}/v1/{path}", data=body, headers=headers)
        media_type = reply.headers.get("content-type")
        if media_type.startswith("text/event-stream"):
            return StreamingResponse(_relay(reply), reply.status, media_type=media_type)
        return Response(await reply.read(), reply.status, media_type=media_type)

    return app


async def _relay(reply: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    try:
        async for data in reply.content.iter_any():
            yield data
    finally:
        reply.close()


if __name__ == "__main__":
    application = create_app(sys.argv[2])
    uvicorn.run(
        application,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        log_level="warning",
        access_log=False,
        timeout_keep_alive=600,
    )

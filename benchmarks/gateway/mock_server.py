"""An OpenAI-compatible server of nothing but the engine: bare uvicorn, in a process of its own.

It is what gateways to servers elsewhere stand in front of, and what each gateway's added latency is counted from.
"""

import json
import sys

import uvicorn
from starlette.types import Receive, Scope, Send

from benchmarks.gateway import engine

_MODELS = json.dumps({"object": "list", "data": [{"id": engine.MODEL, "object": "model", "owned_by": "us"}]}).encode()


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        return
    if scope["method"] == "POST" and scope["path"] == "/v1/chat/completions":
        await _answer(await _read(receive), send)
    elif scope["path"] == "/v1/models":
        await _whole(send, _MODELS)
    elif scope["path"] == "/health":
        await _whole(send, b"{}")
    else:
        await _whole(send, b"{}", 404)


async def _read(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def _answer(body: bytes, send: Send) -> None:
    work = engine.work_of(json.loads(body))
    if not work.stream:
        await _whole(send, await engine.document(work))
        return
    headers = [(b"content-type", engine.MEDIA_TYPE.encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    async for event in engine.events(work):
        await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _whole(send: Send, body: bytes, status: int = 200) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def serve(port: int) -> None:
    # Kept alive for longer than a gateway lets a connection idle, or it would write into one that is being closed.
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False, timeout_keep_alive=600)


if __name__ == "__main__":
    serve(int(sys.argv[1]))

"""A client of an ASGI application that sends what no library sends, and keeps all that comes back."""

import asyncio
import time
from dataclasses import dataclass, field
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Scope

from tests.fuzz.inputs import Input

HANG_S = 30.0  # then an answer is given up


@dataclass(slots=True)
class Answer:
    """What came back."""

    status: int | None = None
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    whole: bool = False  # it has an end
    seconds: float = 0.0
    error: BaseException | None = None  # that the application let out
    disorder: str = ""  # in its messages

    def header(self, name: bytes) -> str:
        return next((value.decode("latin-1") for found, value in self.headers if found == name), "")

    def take(self, message: Message) -> None:
        """A message of the application's."""
        if message["type"] == "http.response.start" and self.status is None:
            self.status = message["status"]
            self.headers = [(bytes(name), bytes(value)) for name, value in message.get("headers", ())]
        elif message["type"] == "http.response.body" and self.status is not None and not self.whole:
            self.body += message.get("body", b"")
            self.whole = not message.get("more_body", False)
        else:
            self.disorder = message["type"]


def scope_of(asked: Input) -> Scope:
    """As uvicorn makes one of what it reads."""
    path, _, query = asked.target.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 50_000),
        "scheme": "http",
        "method": asked.method,
        "root_path": "",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [*asked.headers],
        "state": {},
    }


async def ask(app: ASGIApp, asked: Input) -> Answer:
    """Send a request, and wait for all of its answer. Waits, once all is sent, as a client does that stays."""
    answer, messages = Answer(), list(_messages(asked))
    done = asyncio.Event()

    async def receive() -> Message:
        if messages:
            await asyncio.sleep(0)
            return messages.pop(0)
        if asked.leaves == "never":
            await done.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        answer.take(message)

    began = time.monotonic()
    # A task of its own, as in a server: the ingress cancels it when the client leaves.
    task = asyncio.ensure_future(_run(app, scope_of(asked), receive, send))
    _, hanging = await asyncio.wait([task], timeout=HANG_S)
    answer.seconds = time.monotonic() - began
    if hanging:
        task.cancel()
    answer.error = (await asyncio.gather(task, return_exceptions=True))[0]
    done.set()
    return answer


async def _run(app: ASGIApp, scope: Scope, receive: object, send: object) -> None:
    await app(scope, receive, send)  # type: ignore[arg-type]


def _messages(asked: Input) -> list[Message]:
    pieces = asked.body or (b"",)
    ends = len(pieces) - 1
    return [
        {"type": "http.request", "body": piece, "more_body": asked.leaves == "early" or at < ends}
        for at, piece in enumerate(pieces)
    ]

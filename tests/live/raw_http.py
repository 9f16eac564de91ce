"""HTTP by the bytes of a socket: what no client library sends."""

import contextlib
import json
import socket
import time
from collections.abc import Iterable
from typing import Any

from tests.fuzz.inputs import MARKER
from tests.live.server import Server

CHAT = b"/v1/chat/completions"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": MARKER}], "max_tokens": 4}).encode()


def connect(server: Server, timeout_s: float = 30) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=timeout_s)


def post(*headers: bytes, body: bytes = BODY, length: int | None = None, connection: bytes = b"close") -> bytes:
    own = [b"host: x", b"connection: " + connection, b"content-length: %d" % (len(body) if length is None else length)]
    return b"\r\n".join([b"POST %b HTTP/1.1" % CHAT, *own, *headers, b"", body])


def get(target: bytes, *headers: bytes) -> bytes:
    return b"\r\n".join([b"GET %b HTTP/1.1" % target, b"host: x", b"connection: close", *headers, b"", b""])


def exchange(server: Server, sent: bytes, slowly: Iterable[bytes] = ()) -> bytes:
    """All that comes back until the server closes the connection."""
    received = b""
    with connect(server) as connection:
        with contextlib.suppress(OSError):  # it may answer, and close, before all is sent
            connection.sendall(sent)
            for piece in slowly:
                time.sleep(0.2)  # slowly, as the client is
                connection.sendall(piece)
        with contextlib.suppress(ConnectionResetError):
            while data := connection.recv(65536):
                received += data
    return received


def status_of(answer: bytes) -> int:
    return int(answer.split(None, 2)[1])


def error_of(answer: bytes) -> dict[str, Any]:
    """Of an answer that is an error in OpenAI's envelope."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower(), answer[:500]
    error: dict[str, Any] = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error

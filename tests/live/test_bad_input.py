"""What no client library sends, to a real server by HAProxy: by bytes of a socket, on loopback."""

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.fuzz.inputs import MARKER
from tests.live.configs import pool_application
from tests.live.fixtures import changed
from tests.live.raw_http import CHAT, connect, error_of, exchange, get, post, status_of
from tests.live.server import Server
from tests.waiting import wait_until

BODY_S = 2.0  # the server's body_timeout_s


@pytest.fixture(scope="module")
def asked(server: Server, config: Path) -> Iterator[Server]:
    """The server, with the pool that is asked."""
    args = {"engine": "simulated", "model": "m", "num_cpus": 0.1, "engine_args": {"time_factor": 0}}
    with changed(server, config, {"body_timeout_s": BODY_S}, pool_application("m", {}, args)):
        wait_until(server.is_ready, "the pool is up")
        yield server


@pytest.fixture(autouse=True)
def next_one_is_answered(server: Server, asked: Server, silent: object) -> Iterator[None]:
    yield
    assert status_of(exchange(server, post())) == 200


# Headers that Serve decodes before the ingress sees them, by which it would answer 500, or with a text of its own.
@pytest.mark.parametrize(
    "header",
    [
        b"x-request-id: \xff\xfe",
        "x-request-id: \u00e9".encode(),
        b"x-request-id: good\r\nx-request-id: \xff",
        b"x-request-timeout-seconds: \xff",
        b"x-request-timeout-seconds: 0.000001",
        b"x-request-disconnect-disabled: \xff",
        b"serve_multiplexed_model_id: \xff",
        b"serve-multiplexed-model-id: \xff",
        b"x-session-id: \xff",
        b"traceparent: \xff",
        b"authorization: \xff\xfe " + MARKER.encode(),
        b"x-other: \xff",
        b"expect: what",
    ],
)
def test_odd_bytes_in_a_header_are_nobody_s_error(server: Server, header: bytes) -> None:
    assert status_of(exchange(server, post(header))) == 200


@pytest.mark.parametrize(("sent", "kept"), [(b"mine-1", True), (b"i" * 200, True), (b"i" * 201, False)])
def test_a_client_s_request_id_is_kept_where_it_is_plain(server: Server, sent: bytes, kept: bool) -> None:
    assert (b"x-request-id: " + sent + b"\r\n" in exchange(server, post(b"x-request-id: " + sent))) == kept


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (post(b"x-request-type: \xff"), 400),
        (get(b"/v1/models/%00%ff%0d%0a"), 404),
        (get(b"//evil.example/health"), 404),
        (get(b"/" + b"a" * 8000), 404),
        (b"TRACE /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", 405),
        (b"OPTIONS * HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", 404),
        (
            b"POST %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" % CHAT,
            400,
        ),
        (post(body=b"[" * 1_000_000), 400),
        (post(body=b'{"model": "m", "prompt": [' + b"[]," * 2_000_000 + b"1]}"), 400),
    ],
)
def test_what_comes_to_the_ingress_is_refused_in_the_envelope(server: Server, sent: bytes, status: int) -> None:
    answer = exchange(server, sent)
    assert status_of(answer) == status
    assert error_of(answer)["type"] == "invalid_request_error"


# HAProxy answers these with a page of its own, and closes the connection.
@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /health\r\n",
        get(b"/v1/models/\xff"),
        get(b"/health", b"\xff: name"),
        get(b"/health", b"x: \x00"),
        get(b"/health", *(b"x-%d: y" % number for number in range(2000))),
        get(b"/health", b"x: " + b"y" * 1_000_000),
        get(b"/health", b"host: y"),
        get(b"/health", b"content-length: -1"),
        get(b"/health", b"content-length: 1", b"content-length: 2"),
        get(b"/health", b"transfer-encoding: gzip"),
    ],
)
def test_what_is_not_http_is_turned_away(server: Server, sent: bytes) -> None:
    assert status_of(exchange(server, sent)) == 400


def test_garbage_after_a_request_leaves_its_answer_alone(server: Server) -> None:
    answer = exchange(server, post(connection=b"keep-alive") + b"\x00\xff garbage\r\n\r\n" + post())
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.count(b"HTTP/1.1 400 ") == 1
    assert answer.count(b"HTTP/1.1 200 ") == 1


def test_a_length_that_is_too_short(server: Server) -> None:
    answer = exchange(server, post(length=10))
    assert status_of(answer) == 400 and b"The request body is not JSON" in answer


@pytest.mark.parametrize("ends", ["closed", "half closed"])
def test_connections_that_end_in_mid_body(server: Server, ends: str) -> None:
    for _ in range(50):
        with connect(server) as connection:
            connection.sendall(post(length=1000))
            if ends == "half closed":
                connection.shutdown(socket.SHUT_WR)
                assert connection.recv(65536)[:12] in (b"", b"HTTP/1.1 400")


def test_a_slow_body_is_given_up(server: Server) -> None:
    began = time.monotonic()
    answer = exchange(server, post(body=b"", length=1000), slowly=[b" "] * 40)
    assert (status_of(answer), error_of(answer)["code"]) == (408, "body_timeout")
    assert BODY_S <= time.monotonic() - began < BODY_S + 10


def test_slow_bodies_hold_up_nobody(server: Server) -> None:
    slow = [connect(server) for _ in range(200)]
    try:
        for connection in slow:
            connection.sendall(post(length=1000))
        assert status_of(exchange(server, post())) == 200
        for connection in slow:
            assert status_of(connection.recv(65536)) == 408
    finally:
        for connection in slow:
            connection.close()


def test_a_body_of_50_mb_is_not_held(server: Server) -> None:
    [ingress] = server.replicas("ingress")
    before = most = ingress.memory_info().rss
    with connect(server) as connection:
        connection.sendall(post(body=b"", length=50_000_000))
        with contextlib.suppress(OSError):
            for _ in range(50):
                connection.sendall(b"x" * 1_000_000)
                with contextlib.suppress(psutil.Error):
                    most = max(most, ingress.memory_info().rss)
        answer = connection.recv(65536)
    assert (status_of(answer), error_of(answer)["code"]) == (413, "body_too_large")
    assert most - before < 100 * 2**20  # the largest body, twice, and what else goes on


def test_no_log_has_anything_of_what_was_sent(server: Server) -> None:
    logs = [
        path for path in server.folder.rglob("*") if path.is_file() and path.suffix in (".log", ".out", ".err", ".txt")
    ]
    assert any(b"POST" in path.read_bytes() for path in logs), "those of the ingress are among them"
    assert [path for path in logs if MARKER.encode() in path.read_bytes()] == []

"""Connections that say little, and nothing, while others are served; last in this folder, for they are waited for."""

from tests.live.conftest import Silent

HEADERS_S = 30  # HAProxy's, by deployments/haproxy.py


def test_slow_headers_are_given_up(silent: Silent) -> None:
    for connection in silent.connections:
        connection.settimeout(HEADERS_S + 30)
        assert connection.recv(65536)[:12] in (b"HTTP/1.1 408", b"")
    assert silent.age_s >= HEADERS_S - 1

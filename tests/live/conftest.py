"""What tests of running servers share; the server itself is in `fixtures`."""

import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.live.fixtures import engine_params
from tests.live.raw_http import connect
from tests.live.server import Server

ENGINES = ("simulated", "transformers", "vllm", "sglang")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of an `engine` are run on each."""
    if "engine" in metafunc.fixturenames:
        metafunc.parametrize("engine", engine_params(metafunc.config, ENGINES))


@dataclass(frozen=True, slots=True)
class Silent:
    """Connections on which no whole request comes."""

    began_s: float
    connections: list[socket.socket]

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.began_s


@pytest.fixture(scope="session")
def silent(server: Server) -> Iterator[Silent]:
    opened = Silent(time.monotonic(), [connect(server), connect(server)])
    opened.connections[0].sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n")
    yield opened
    for connection in opened.connections:
        connection.close()

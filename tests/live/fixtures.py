"""One real server with every engine that this machine has, for all tests, in whichever folder, that don't break it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conformance import server_config
from tests.conformance.witness import joined
from tests.fakes.running import servers_of
from tests.live.server import Server, serving
from tests.waiting import free_port

# What the openai engine is put in front of: the cheapest, for it is its passing on that is tested.
BEHIND = "simulated"


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return server_config.write(
        server_config.engines_here(), free_port(), tmp_path_factory.mktemp("config"), behind=BEHIND
    )


@pytest.fixture(scope="session")
def server(config: Path) -> Iterator[Server]:
    with (
        servers_of(config),
        serving(
            config, yaml.safe_load(config.read_text())["http_options"]["port"], environ=server_config.environ()
        ) as running,
    ):
        yield running


@pytest.fixture(scope="module")  # some modules join a Ray of their own
def cluster(server: Server) -> Iterator[Any]:
    """This process as a driver of the server's Ray, to ask pools what clients can't."""
    with joined(server) as context:
        yield context

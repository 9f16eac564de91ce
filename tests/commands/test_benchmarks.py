"""The benchmarks as they are run, for a moment."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.gateway import __main__ as program
from benchmarks.gateway import measure
from benchmarks.gateway.cases import CASES
from benchmarks.gateway.processes import Launch, module
from benchmarks.gateway.rows import ROWS, Place, Row
from benchmarks.overload import __main__ as overload
from benchmarks.throughput import __main__ as throughput
from deployments import environments
from tests.live.server import ROOT, alone

NO_VLLM = "vllm isn't installed; run 'enginehouse engines install vllm'"
SHORT = tuple(case.scaled(0.01) for case in CASES if case.name in ("stream-0ms-c16", "stream-10ms-c64", "whole-c64"))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "CASES", SHORT)
    monkeypatch.setattr(measure, "IDLE_S", 0.1)
    monkeypatch.setattr("benchmarks.gateway.report.CASES", SHORT)


def test_a_row_from_start_to_stop(tmp_path: Path) -> None:
    out = tmp_path / "raw.json"
    result = CliRunner().invoke(
        program.main, ["--rows", "byte-proxy,smg", "--scale", "0.01", "--json", "--out", str(out)], env={"PATH": "/"}
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    row = found["rows"]["byte-proxy"]
    assert list(found["skipped"]) == ["smg"]
    assert row["wrong"] == 0
    assert row["paired"]["pairs"] == 20
    assert 0 < row["cpu_ms_per_request"] < 100
    assert 0 < row["cpu_us_per_chunk"] < 10_000
    assert row["added_ttft_ms_p50"] > 0
    assert row["max_chunks_per_s"] > 100
    assert 20 < row["rss_mb"] < 1000
    assert row["cases"]["stream-10ms-c64"]["requests"] == 64
    assert row["cases"]["stream-10ms-c64"]["gap_ms_p50"] > 1
    assert json.loads(out.read_text())["result"] == found


@pytest.mark.parametrize("row", ["enginehouse", "enginehouse-remote"])
def test_enginehouse_s_own_rows(row: str) -> None:
    result = CliRunner().invoke(program.main, ["--rows", row, "--scale", "0.01", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["rows"][row]
    assert found["wrong"] == 0
    assert found["cpu_ms_per_request"] > 0


def test_a_pool_that_can_t_be_deployed_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(place: Place) -> Launch:
        started = ROWS["enginehouse"].launch(place)
        config = place.folder / "serve.yaml"
        config.write_text(config.read_text().replace("num_cpus: 0.1", "num_cpus: 0.1\n    engine_args: {sise: 1}"))
        return started

    monkeypatch.setitem(ROWS, "byte-proxy", Row("byte-proxy", launch))
    result = CliRunner().invoke(program.main, ["--rows", "byte-proxy"])
    assert result.exit_code == 1
    assert "pool pool-benchmark: deploy_failed: " in result.stdout
    assert "sise" in result.stdout


def test_a_row_that_does_not_start_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROWS, "byte-proxy", Row("byte-proxy", lambda place: Launch(module("nowhere"))))
    result = CliRunner().invoke(program.main, ["--rows", "byte-proxy"])
    assert result.exit_code == 1
    assert "No module named benchmarks.gateway.nowhere" in result.stdout


def test_overload_on_the_command_line() -> None:
    result = CliRunner().invoke(overload.main, ["--calm", "1", "--overload", "1", "--rows", "limits", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["limits"]["phases"]["overload"]["chat"]["answered"] > 0


@pytest.mark.skipif(not environments.is_installed("vllm"), reason=NO_VLLM)
def test_throughput_on_the_command_line() -> None:
    options = ["--rounds", "1", "--requests", "4", "--clients", "2", "--json"]
    with alone(ROOT / "cluster" / "cpu-engines.yaml"):
        result = CliRunner().invoke(throughput.main, options)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["through_ingress_tokens_per_s"] > 0

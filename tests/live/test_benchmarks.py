"""The benchmark as it is run, on the one row that starts in a second."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.gateway import __main__ as program
from benchmarks.gateway import measure
from benchmarks.gateway.cases import CASES
from benchmarks.gateway.processes import Launch, module
from benchmarks.gateway.rows import ROWS, Row

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


def test_a_row_that_does_not_start_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROWS, "byte-proxy", Row("byte-proxy", lambda place: Launch(module("nowhere"))))
    result = CliRunner().invoke(program.main, ["--rows", "byte-proxy"])
    assert result.exit_code == 1
    assert "No module named benchmarks.gateway.nowhere" in result.stdout

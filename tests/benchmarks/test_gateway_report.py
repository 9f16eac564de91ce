"""The document, its ratios, and the table."""

from dataclasses import replace

import pytest

from benchmarks.gateway import report
from benchmarks.gateway.cases import CASES
from benchmarks.gateway.report import Results
from tests.benchmarks.gateway_samples import PAIRED, row_figures


def results() -> Results:
    found = Results(skipped={"smg": "no smg on PATH"}, failed={"litellm": "it ended by itself"})
    found.add("enginehouse", row_figures(2.0))
    found.add("ray-serve-llm", row_figures(21.0))
    return found


def test_the_document() -> None:
    found = report.document(results())
    assert set(found) == {"rows", "skipped", "failed", "ratios"}
    row = found["rows"]["enginehouse"]
    headline = {key: row[key] for key in report.COLUMNS}
    assert headline == {
        "cpu_ms_per_request": 2.0,
        "cpu_us_per_chunk": 50.0,
        "added_ttft_ms_p50": 1.5,
        "added_ttft_ms_p99": 3.0,
        "max_chunks_per_s": 640.0,
        "rss_mb": 100.0,
        "idle_cpu_percent": 5.0,
        "wrong": 0,
    }
    assert list(row["cases"]) == [case.name for case in CASES]
    assert row["cases"]["whole-c64"]["raw_cpu_ms_per_request"] == 2.5
    assert found["ratios"] == {"ray-serve-llm / enginehouse": {"cpu_ms_per_request": 10.5, "cpu_us_per_chunk": 1.0}}


def test_ratios_are_of_rows_that_are_there() -> None:
    rows = {name: {"cpu_ms_per_request": 4.0, "cpu_us_per_chunk": 0.0} for name in ("enginehouse-remote", "byte-proxy")}
    assert report.ratios(rows) == {
        "enginehouse-remote / byte-proxy": {"cpu_ms_per_request": 1.0, "cpu_us_per_chunk": None}
    }
    assert report.ratios({"enginehouse": rows["byte-proxy"]}) == {}


def test_several_runs_give_medians_and_all_that_was_wrong() -> None:
    runs = [row_figures(2.0, {"text": 1}), row_figures(9.0, {"text": 2, "status": 1}), row_figures(3.0)]
    row = report.row_document(runs)
    assert (row["cpu_ms_per_request"], row["runs"], row["wrong"]) == (3.0, 3, 4 * len(CASES))
    assert row["cases"]["stream-0ms-c1"]["wrong"] == {"text": 3, "status": 1}


def test_a_figure_that_some_runs_lack() -> None:
    assert report.merged([{"a": 1.0}, {"a": None}, {"a": 3.0}]) == {"a": 2.0}
    assert report.merged([None, None]) is None


def test_one_wrong_answer_or_one_row_that_failed_is_enough() -> None:
    good = Results(runs={"byte-proxy": [row_figures()]}, skipped={"smg": "not here"})
    assert good.all_right
    assert not replace(good, failed={"smg": "gone"}).all_right
    assert not replace(good, runs={"byte-proxy": [row_figures(), row_figures(wrong={"text": 1})]}).all_right
    paired = replace(PAIRED, wrong={"text": 1})
    assert not replace(good, runs={"byte-proxy": [row_figures(paired=paired)]}).all_right


def test_the_table() -> None:
    found = results()
    found.add("byte-proxy", row_figures(0.5, {"the text differs": 2}))
    text = report.table(report.document(found))
    own, remote, *lists = text.split("\n\n")
    assert own.splitlines()[0].startswith("An engine in a worker of the row's own  CPU ms/request  CPU us/chunk")
    assert own.splitlines()[1].split() == ["enginehouse", "2.00", "50", "1.50", "3.0", "640", "100", "5.0", "0"]
    assert remote.splitlines()[1].split()[:2] == ["byte-proxy", "0.50"]
    assert len({len(line) for line in own.splitlines()}) == 1
    ratios, skipped, failed, wrong = lists
    assert ratios == "Ratios\n  ray-serve-llm / enginehouse: CPU ms/request 10.5, CPU us/chunk 1.0"
    assert skipped == "Skipped\n  smg: no smg on PATH"
    assert failed == "Failed\n  litellm: it ended by itself"
    assert wrong.startswith("Wrong answers\n  byte-proxy: stream-0ms-c1: 2x the text differs; stream-0ms-c16: 2x")


@pytest.mark.parametrize("name", [None, "byte-proxy"])
def test_a_table_of_few_rows_has_nothing_else(name: str | None) -> None:
    found = Results(runs={name: [row_figures()]} if name else {})
    assert report.table(report.document(found)).count("\n") == (1 if name else 0)

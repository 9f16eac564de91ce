"""From the figures of all runs to one document and to a table. Pure functions."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.columns import aligned
from benchmarks.gateway.cases import CASES, PACED_HEADLINE, WHOLE_HEADLINE
from benchmarks.gateway.measure import RowFigures
from benchmarks.gateway.rows import MANY_POOLS, OWN_WORKER, REMOTE_SERVER

# Whose figures are divided by whose.
RATIOS = (
    ("ray-serve-llm", "enginehouse"),
    ("ray-serve-llm-direct", "enginehouse"),
    ("enginehouse-remote", "byte-proxy"),
    ("enginehouse-10-pools", "enginehouse"),
    ("enginehouse-100-pools", "enginehouse"),
)
RATIO_FIGURES = ("cpu_ms_per_request", "cpu_us_per_chunk")
DIGITS = 4  # behind the point, in the document

COLUMNS = {
    "cpu_ms_per_request": ("CPU ms/request", "{:.2f}"),
    "cpu_us_per_chunk": ("CPU us/chunk", "{:.0f}"),
    "added_ttft_ms_p50": ("added TTFT ms p50", "{:.2f}"),
    "added_ttft_ms_p99": ("p99", "{:.1f}"),
    "max_chunks_per_s": ("max chunks/s", "{:,.0f}"),
    "rss_mb": ("RSS MB", "{:,.0f}"),
    "idle_cpu_percent": ("idle CPU %", "{:.1f}"),
    "wrong": ("wrong", "{}"),
}


@dataclass(slots=True)
class Results:
    """What came of a benchmark, row by row."""

    runs: dict[str, list[RowFigures]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)  # rows that can't be here, with the reason
    failed: dict[str, str] = field(default_factory=dict)  # rows that should have been, and why they weren't

    def add(self, row: str, run: RowFigures) -> None:
        self.runs.setdefault(row, []).append(run)

    @property
    def all_right(self) -> bool:
        return not self.failed and not any(_wrong(run) for runs in self.runs.values() for run in runs)


def document(results: Results) -> dict[str, Any]:
    """Medians over the runs of each row."""
    rows = {name: row_document(runs) for name, runs in results.runs.items()}
    return {"rows": rows, "skipped": results.skipped, "failed": results.failed, "ratios": ratios(rows)}


def row_document(runs: Sequence[RowFigures]) -> dict[str, Any]:
    row = merged([asdict(run) for run in runs])
    paired, cases = row["paired"], row["cases"]
    speeds = [cases[case.name]["chunks_per_s"] for case in CASES if case.ask.stream and not case.paced]
    return {
        "cpu_ms_per_request": cases[WHOLE_HEADLINE]["cpu_ms_per_request"],
        "cpu_us_per_chunk": cases[PACED_HEADLINE]["cpu_us_per_chunk"],
        "added_ttft_ms_p50": paired["added_ttft_ms_p50"],
        "added_ttft_ms_p99": paired["added_ttft_ms_p99"],
        "max_chunks_per_s": max(speeds),
        "rss_mb": row["rss_mb"],
        "pss_mb": row["pss_mb"],
        "idle_cpu_percent": row["idle_cpu_percent"],
        "start_s": row["start_s"],
        "wrong": sum(map(_wrong, runs)),
        "runs": len(runs),
        "paired": paired,
        "cases": cases,
    }


def merged(values: Sequence[Any]) -> Any:
    """One value of several of the same shape: medians of numbers, counts of wrong answers added up."""
    there = [value for value in values if value is not None]
    if not there:
        return None
    if isinstance(there[0], dict):
        keys = dict.fromkeys(key for value in there for key in value)
        wrong = {"wrong": _added(there)} if "wrong" in keys else {}
        return {key: merged([value.get(key) for value in there]) for key in keys if key != "wrong"} | wrong
    return round(statistics.median(there), DIGITS)


def _added(values: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    return dict(sum((Counter(value["wrong"]) for value in values), Counter[str]()))


def ratios(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    return {
        f"{one} / {other}": {figure: _ratio(rows[one][figure], rows[other][figure]) for figure in RATIO_FIGURES}
        for one, other in RATIOS
        if one in rows and other in rows
    }


def _ratio(one: float, other: float) -> float | None:
    """None where the other has no cost that could be measured."""
    return round(one / other, 2) if other > 0 else None


def _wrong(run: RowFigures) -> int:
    faults = [run.paired.wrong, *(case.wrong for case in run.cases.values())]
    return sum(sum(counts.values()) for counts in faults)


def table(found: Mapping[str, Any]) -> str:
    """A document of `document` for people."""
    parts = [
        _comparison("An engine in a worker of the row's own", [row.name for row in OWN_WORKER], found["rows"]),
        _comparison("A server elsewhere", [row.name for row in REMOTE_SERVER], found["rows"]),
        _comparison("More pools", [row.name for row in MANY_POOLS], found["rows"]),
        _listed("Ratios", {name: _ratio_text(ratio) for name, ratio in found["ratios"].items()}),
        _listed("Skipped", found["skipped"]),
        _listed("Failed", found["failed"]),
        _listed("Wrong answers", {name: text for name, row in found["rows"].items() if (text := _wrong_text(row))}),
    ]
    return "\n\n".join(part for part in parts if part)


def _comparison(title: str, names: Sequence[str], rows: Mapping[str, Mapping[str, Any]]) -> str:
    there = [name for name in names if name in rows]
    if not there:
        return ""
    cells = [[title, *(heading for heading, _ in COLUMNS.values())]]
    cells += [[f"  {name}", *(text.format(rows[name][key]) for key, (_, text) in COLUMNS.items())] for name in there]
    return "\n".join(aligned(cells))


def _listed(title: str, items: Mapping[str, str]) -> str:
    return "\n".join([title, *(f"  {name}: {text}" for name, text in items.items())]) if items else ""


def _ratio_text(ratio: Mapping[str, float | None]) -> str:
    return ", ".join(f"{COLUMNS[figure][0]} {value}" for figure, value in ratio.items())


def _wrong_text(row: Mapping[str, Any]) -> str:
    found = {"paired": row["paired"], **row["cases"]}
    faults = [f"{name}: {count}x {fault}" for name, case in found.items() for fault, count in case["wrong"].items()]
    return "; ".join(faults)

"""What came of a run, as a table or as JSON. Pure functions."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import get_args

from tests.conformance.suite import Check, Outcome, Result

Results = Mapping[str, Mapping[str, Result]]  # engine to check to result

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


def failed(results: Results) -> bool:
    return any(result.outcome == "fail" for column in results.values() for result in column.values())


def as_json(results: Results) -> str:
    outcomes = {engine: {name: result.outcome for name, result in column.items()} for engine, column in results.items()}
    return json.dumps({"engines": outcomes}, indent=2)


def as_text(results: Results, checks: Mapping[str, Check]) -> str:
    """Engines across, checks down, totals, and below them the reason of each failure and of what isn't applicable."""
    rows = [*_rows(results, checks), *_totals(results)]
    width = max(len(row[0]) for row in rows)
    widths = [width, *(max(8, len(engine)) for engine in results)]
    lines = ["  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=False)).rstrip() for row in rows]
    return "\n".join([*lines, *_reasons(results)])


def _rows(results: Results, checks: Mapping[str, Check]) -> list[list[str]]:
    rows = []
    theme = None
    for name, found in checks.items():
        if found.theme != theme:
            theme = found.theme
            rows.append([f"{theme.upper()}", *results])
        outcomes = (column[name].outcome if name in column else "" for column in results.values())
        rows.append([f"  {name}", *(outcome.upper() if outcome == "fail" else outcome for outcome in outcomes)])
    return rows


def _totals(results: Results) -> list[list[str]]:
    counts = [Counter(result.outcome for result in column.values()) for column in results.values()]
    rows = [[f"  {outcome}", *(str(count[outcome]) for count in counts)] for outcome in OUTCOMES]
    return [["TOTALS", *results], *rows, ["  checks", *(str(count.total()) for count in counts)]]


def _reasons(results: Results) -> list[str]:
    lines = []
    for outcome, title in (("n/a", "NOT APPLICABLE"), ("fail", "FAILED")):
        found = [
            f"  {engine}: {name}: {result.reason}"
            for engine, column in results.items()
            for name, result in column.items()
            if result.outcome == outcome
        ]
        lines += ["", title, *found] if found else []
    return lines

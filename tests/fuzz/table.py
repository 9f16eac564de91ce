"""What came of a run, as a table or as JSON."""

import json
from collections.abc import Sequence
from typing import Any

from benchmarks.columns import aligned
from tests.fuzz.campaign import Row

STATUSES = ("2xx", "3xx", "4xx", "5xx", "left")
_HEADS = ("target", "inputs", *STATUSES, "slowest", "faults")


def as_text(rows: Sequence[Row]) -> str:
    """The table; `left` are clients that went before their answer."""
    return "\n".join(aligned([_HEADS, *map(_cells, [*rows, total(rows)])]))


def _cells(row: Row) -> tuple[str, ...]:
    counts = (str(row.statuses[status]) for status in STATUSES)
    return row.target, str(row.inputs), *counts, f"{row.slowest_s:.2f} s", str(row.faulty)


def as_json(rows: Sequence[Row]) -> str:
    return json.dumps({"targets": [*map(_document, rows)], "total": _document(total(rows))}, indent=2)


def _document(row: Row) -> dict[str, Any]:
    statuses = {status: row.statuses[status] for status in STATUSES}
    named = {"target": row.target, "inputs": row.inputs, "statuses": statuses, "slowest_s": round(row.slowest_s, 3)}
    return {**named, "faulty": row.faulty, "faults": row.faults}


def total(rows: Sequence[Row]) -> Row:
    """All rows as one."""
    every = Row("all")
    for row in rows:
        every.inputs += row.inputs
        every.statuses += row.statuses
        every.slowest_s = max(every.slowest_s, row.slowest_s)
        every.faulty += row.faulty
    return every

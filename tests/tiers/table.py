"""What came of a run of tiers, as a table or as JSON. Pure functions."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from tests.tiers.parts import TIERS
from tests.tiers.running import Done

HEAD = ("tier", "part", "tests", "skipped", "failed", "seconds", "most memory, GB")


def as_json(found: Sequence[Done]) -> str:
    return json.dumps({"good": all(each.good for each in found), "parts": [asdict(each) for each in found]}, indent=2)


def as_text(found: Sequence[Done]) -> str:
    """The table, as markdown, with a line of totals for each tier, and below it what failed or wasn't run."""
    rows = [HEAD, *(row for tier in dict.fromkeys(each.tier for each in found) for row in _rows(tier, found))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = [_line(row, widths) for row in rows]
    lines.insert(1, _line(tuple("-" * width for width in widths), widths))
    bad = [f"{each.name}: exit status {each.status}; {', '.join(each.failures)}" for each in found if not each.good]
    absent = [f"{each.name}: not run: {each.why}" for each in found if each.why]
    return "\n".join([*lines, *bad, *absent])


def _rows(tier: str, found: Sequence[Done]) -> list[tuple[str, ...]]:
    parts = [each for each in found if each.tier == tier]
    limit_s = TIERS[tier].limit_s
    total = (
        f"{sum(each.seconds for each in parts):.0f} of {limit_s}",
        f"{max(each.memory_gb for each in parts):.1f}",
    )
    counts = (str(sum(counted)) for counted in zip(*((p.tests, p.skipped, p.failed) for p in parts), strict=True))
    return [*(_row(each) for each in parts), (tier, "", *counts, *total)]


def _row(done: Done) -> tuple[str, ...]:
    counts = (str(count) if count else "" for count in (done.tests, done.skipped, done.failed))
    return ("", done.name, *counts, f"{done.seconds:.0f}", f"{done.memory_gb:.1f}")


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"

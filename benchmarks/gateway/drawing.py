"""Draws a result: `python -m benchmarks.gateway.drawing PICTURE.png`, with its document on standard input."""

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

# By name, for a type checker doesn't find them: they are no dependency of ours.
matplotlib: Any = import_module("matplotlib")
pyplot: Any = import_module("matplotlib.pyplot")
matplotlib.use("Agg")  # no screen

PANELS = {
    "cpu_ms_per_request": "CPU ms a request\n(not streamed, 64 clients)",
    "cpu_us_per_chunk": "CPU us a chunk\n(64 chunks every 10 ms, 64 clients)",
    "added_ttft_ms_p50": "added time to first token, ms\n(median, one client)",
    "max_chunks_per_s": "most chunks a second\n(as fast as it can)",
}
OURS, THEIRS = "#c0392b", "#7f8c8d"


def draw(rows: Mapping[str, Mapping[str, Any]], picture: str) -> None:
    figure, panels = pyplot.subplots(1, len(PANELS), figsize=(16, 1.4 + 0.4 * len(rows)), sharey=True)
    for axes, (key, title) in zip(panels, PANELS.items(), strict=True):
        _bars(axes, {name: row[key] for name, row in rows.items()})
        axes.set_title(title, fontsize=10)
    panels[0].invert_yaxis()  # of all, for they share it: the first row is at the top
    figure.tight_layout()
    figure.savefig(picture, dpi=120)


def _bars(axes: Any, values: Mapping[str, float]) -> None:
    """On a logarithmic scale: contestants are orders of magnitude apart."""
    colours = [OURS if name.startswith("enginehouse") else THEIRS for name in values]
    bars = axes.barh(list(values), list(values.values()), color=colours)
    axes.bar_label(bars, labels=[_label(value) for value in values.values()], padding=3, fontsize=9)
    axes.set_xscale("log")
    axes.margins(x=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _label(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    draw(json.load(sys.stdin)["rows"], sys.argv[1])

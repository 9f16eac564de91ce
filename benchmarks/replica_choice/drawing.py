"""Draws a result: `python -m benchmarks.replica_choice.drawing PICTURE.png`, with its document on standard input."""

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
    "prefix_hit_rate": "prefix hits, share of prompt tokens",
    "ttft_ms_p50": "time to first token, ms (median)",
    "ttft_ms_p99": "time to first token, ms (p99)",
    "max_by_mean_p99": "most loaded replica by the mean (p99)",
}
LOGARITHMIC = ("ttft_ms_p50", "ttft_ms_p99")
COLOURS = ("#bdc3c7", "#7f8c8d", "#2980b9", "#c0392b")


def draw(found: Mapping[str, Mapping[str, Mapping[str, float]]], picture: str) -> None:
    figure, panels = pyplot.subplots(2, 2, figsize=(12, 7))
    for axes, (key, title) in zip(panels.flat, PANELS.items(), strict=True):
        _bars(axes, {case: {name: row[key] for name, row in rows.items()} for case, rows in found.items()})
        axes.set_title(title, fontsize=10)
        if key in LOGARITHMIC:
            axes.set_yscale("log")
    panels[1][1].set_ylim(bottom=1)
    panels[0][0].legend(fontsize=9)
    figure.tight_layout()
    figure.savefig(picture, dpi=80)


def _bars(axes: Any, cases: Mapping[str, Mapping[str, float | None]]) -> None:
    """A group of bars for each case, one for each policy."""
    policies = list(next(iter(cases.values())))
    width = 0.8 / len(policies)
    for number, (policy, colour) in enumerate(zip(policies, COLOURS, strict=False)):
        places = [index + (number - (len(policies) - 1) / 2) * width for index in range(len(cases))]
        axes.bar(places, [rows[policy] or 0 for rows in cases.values()], width, label=policy, color=colour)
    axes.set_xticks(range(len(cases)), [case.replace(", ", "\n") for case in cases], fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    draw(json.load(sys.stdin), sys.argv[1])

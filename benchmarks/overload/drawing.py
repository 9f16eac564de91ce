"""Draws a result: `python -m benchmarks.overload.drawing PICTURE.png`, with its document on standard input."""

import json
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

# By name, for a type checker doesn't find them: they are no dependency of ours.
matplotlib: Any = import_module("matplotlib")
pyplot: Any = import_module("matplotlib.pyplot")
matplotlib.use("Agg")  # no screen

COLOURS = {"chat": "#c0392b", "batch": "#2980b9", "offline": "#7f8c8d"}
STEP_S = 0.25


def draw(found: Mapping[str, Mapping[str, Any]], picture: str) -> None:
    figure, panels = pyplot.subplots(2, len(found), figsize=(7 * len(found), 7), sharex=True, squeeze=False)
    for number, (name, row) in enumerate(found.items()):
        outcomes = row["outcomes"]
        _first_tokens(panels[0][number], outcomes)
        panels[0][number].set_title(name)
        _under_way(panels[1][number], outcomes)
    panels[0][0].set_ylabel("time to first token, ms; x: turned away")
    panels[1][0].set_ylabel("requests whose tokens come")
    figure.tight_layout()
    figure.savefig(picture, dpi=80)


def _first_tokens(axes: Any, outcomes: Sequence[Mapping[str, Any]]) -> None:
    for kind, colour in reversed(COLOURS.items()):
        mine = [one for one in outcomes if one["kind"] == kind]
        began = [(one["sent_s"], 1000 * (one["first_s"] - one["sent_s"])) for one in mine if one["first_s"]]
        shed = [(one["sent_s"], 1000 * (one["answered_s"] - one["sent_s"])) for one in mine if one["status"] == 429]
        axes.scatter(*zip(*began, strict=True), s=6, color=colour, label=kind) if began else None
        axes.scatter(*zip(*shed, strict=True), s=8, marker="x", linewidths=0.4, color=colour) if shed else None
    axes.set_yscale("log")
    axes.legend(loc="upper right", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)


def _under_way(axes: Any, outcomes: Sequence[Mapping[str, Any]]) -> None:
    last_s = max(one["sent_s"] for one in outcomes)
    times = [number * STEP_S for number in range(int(last_s / STEP_S) + 1)]
    counts = [
        [
            sum(
                one["kind"] == kind and bool(one["first_s"]) and one["first_s"] <= at_s <= one["ended_s"]
                for one in outcomes
            )
            for at_s in times
        ]
        for kind in COLOURS
    ]
    axes.stackplot(times, counts, labels=list(COLOURS), colors=list(COLOURS.values()))
    axes.set_xlabel("seconds")
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    draw(json.load(sys.stdin), sys.argv[1])

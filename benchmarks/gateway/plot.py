"""Has a result drawn, by an interpreter that has matplotlib: this one, or that of the rivals' environment."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gateway import rivals
from benchmarks.gateway.processes import ROOT, environment


class PlotError(RuntimeError):
    """It can't be drawn. The message says why, and what to do."""


def draw(
    found: Mapping[str, Any],
    picture: Path,
    report: Callable[[str], None],
    drawing: str = "benchmarks.gateway.drawing",
) -> None:
    """Write `picture`, a PNG, of a document that the module `drawing` can draw.

    Raises:
        PlotError: there is no matplotlib, or it failed.
    """
    if find_spec("matplotlib") is None:
        try:
            rivals.build(report)
        except rivals.BuildError as error:
            raise PlotError(f"No plot: install matplotlib into {sys.prefix}. {error}") from error
    python = rivals.python() if find_spec("matplotlib") is None else sys.executable
    command = [python, "-m", drawing, str(picture.absolute())]
    drawn = subprocess.run(command, cwd=ROOT, env=environment(), input=json.dumps(found), text=True, check=False)
    if drawn.returncode != 0:
        raise PlotError(f"No plot: {' '.join(command)} ended with status {drawn.returncode}.")

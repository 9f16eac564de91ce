"""`python -m benchmarks.overload`: ten times more requests than a pool can answer, with limits and without."""

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from benchmarks.gateway import plot
from benchmarks.overload import figures, load, report
from benchmarks.overload.mix import arrivals
from benchmarks.overload.server import ROWS, Server, serving

PATIENCE_S = 15.0  # of a client, for its whole answer
LOOK_S = 0.5


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def watched(server: Server) -> Iterator[list[float]]:
    """The ingress's memory, at each look until the block ends, in MB."""
    looks, ended = [server.ingress_rss_mb()], threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_S):
            looks.append(server.ingress_rss_mb())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield looks
    finally:
        ended.set()
        thread.join()


def measure(
    admission: dict[str, Any], calm_s: float, overload_s: float, seed: int, ingresses: int = 1
) -> dict[str, Any]:
    """One row's document."""
    with serving(admission, ingresses) as server:
        asyncio.run(load.run(server.port, arrivals(2, 0, seed), PATIENCE_S))  # whatever is slow only once
        with watched(server) as looks:
            outcomes = asyncio.run(load.run(server.port, arrivals(calm_s, overload_s, seed), PATIENCE_S))
    phases = figures.by_kind(outcomes)
    calm = looks[: max(1, int(calm_s / LOOK_S))]
    return {
        "phases": {phase: {kind: asdict(each) for kind, each in kinds.items()} for phase, kinds in phases.items()},
        "used": round(figures.used(outcomes, calm_s, calm_s + overload_s), 3),
        "ingress_rss_mb": {"calm": max(calm), "most": max(looks)},
        "outcomes": [asdict(one) for one in outcomes],
    }


@click.command()
@click.option(
    "--calm", "calm_s", default=15.0, show_default=True, type=click.FloatRange(1), help="Seconds of chat alone."
)
@click.option(
    "--overload", "overload_s", default=30.0, show_default=True, type=click.FloatRange(1), help="Seconds of all."
)
@click.option("--rows", default=",".join(ROWS), show_default=True, help="Which to run, with commas between them.")
@click.option("--ingresses", default=1, show_default=True, type=click.IntRange(1), help="Ingress replicas.")
@click.option("--seed", default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option("--plot", "picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw the result as a PNG.")
def main(
    calm_s: float, overload_s: float, rows: str, ingresses: int, seed: int, as_json: bool, picture: Path | None
) -> None:
    """Ten times more requests than a pool can answer: who waits, who is turned away, and what chat feels of it.

    A simulated pool answers 32 requests at a time. Chat comes all the time, at 0.3 of what the pool can do; for a
    while batch requests come too, at 0.2, and offline ones, at 9.5. Without limits, all are in the engine's queue.
    """
    wanted = [name.strip() for name in rows.split(",")]
    if unknown := [name for name in wanted if name not in ROWS]:
        raise click.BadParameter(f"there is no row '{unknown[0]}'; there are: {', '.join(ROWS)}", param_hint="--rows")
    found = {}
    for name in wanted:
        tell(f"{name}: {2 * calm_s + overload_s:.0f} s")
        found[name] = measure(ROWS[name], calm_s, overload_s, seed, ingresses)
    if picture is not None:
        try:
            plot.draw(found, picture, tell, drawing="benchmarks.overload.drawing")
        except plot.PlotError as error:
            raise click.ClickException(str(error)) from None
    for row in found.values():
        del row["outcomes"]
    print(json.dumps(found, indent=2) if as_json else report.table(found))


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.overload")

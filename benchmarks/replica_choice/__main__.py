"""`python -m benchmarks.replica_choice`: what the choice of replicas does to a pool, simulated on a virtual clock."""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click

from benchmarks.gateway import plot
from benchmarks.replica_choice import report
from benchmarks.replica_choice.cases import cases
from benchmarks.replica_choice.figures import Figures, figures
from benchmarks.replica_choice.policies import POLICIES
from benchmarks.replica_choice.simulate import Case, Simulation


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def run(wanted: Mapping[str, Case], runs: int) -> dict[str, dict[str, list[Figures]]]:
    """Every policy on the same requests; each run has others."""
    found: dict[str, dict[str, list[Figures]]] = {}
    for name, case in wanted.items():
        tell(name)
        found[name] = {
            policy: [figures(Simulation(replace(case, seed=seed), made).run()) for seed in range(1, runs + 1)]
            for policy, made in POLICIES.items()
        }
    return found


@click.command()
@click.option("--runs", default=3, show_default=True, type=click.IntRange(min=1), help="Runs; medians are reported.")
@click.option(
    "--scale", default=1.0, type=click.FloatRange(0, 1, min_open=True), help="Length of all cases; 0.1: a try."
)
@click.option("--replicas", default=4, show_default=True, type=click.IntRange(min=2), help="Of the pool.")
@click.option("--ingresses", default=1, show_default=True, type=click.IntRange(min=1), help="Ingress processes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option("--plot", "picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw the result as a PNG.")
def main(runs: int, scale: float, replicas: int, ingresses: int, as_json: bool, picture: Path | None) -> None:
    """What the choice of replicas does to hits in their prefix caches, to the time to the first token, and to load."""
    found = report.document(run(cases(replicas, ingresses, scale), runs))
    print(json.dumps(found, indent=2) if as_json else report.table(found))
    if picture is not None:
        try:
            plot.draw(found, picture, tell, drawing="benchmarks.replica_choice.drawing")
        except plot.PlotError as error:
            raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.replica_choice")

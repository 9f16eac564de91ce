"""`python -m benchmarks.gateway`: what each gateway costs, side by side, on this machine."""

import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path

import click

from benchmarks.gateway import plot, report, rivals
from benchmarks.gateway.measure import measure, mock_server
from benchmarks.gateway.processes import StartError
from benchmarks.gateway.report import Results
from benchmarks.gateway.rows import ROWS, USUAL, Row


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def choose(names: str | None) -> list[Row]:
    """The rows of a list with commas; without one, the usual.

    Raises:
        click.UsageError: there is no such row.
    """
    wanted = names.split(",") if names else list(USUAL)
    if unknown := [name for name in wanted if name not in ROWS]:
        raise click.UsageError(f"no row {', '.join(unknown)}; there are: {', '.join(ROWS)}")
    return [ROWS[name] for name in wanted]


def run(rows: list[Row], runs: int, scale: float) -> Results:
    """Each row in turn, and all of them again: what changes on the machine meanwhile meets all alike."""
    results = Results(skipped={row.name: reason for row in rows if (reason := row.missing())})
    here = [row for row in rows if row.name not in results.skipped]
    with mock_server() as upstream_port:
        for _ in range(runs):
            for row in here:
                try:
                    row.prepare(tell)
                    results.add(row.name, measure(row, upstream_port, scale, tell))
                except (StartError, rivals.BuildError) as error:
                    results.failed[row.name] = str(error)
                    tell(f"{row.name}: FAILED: {error}")
    return results


def raw(results: Results, found: dict[str, object]) -> str:
    runs = {name: [asdict(each) for each in of_row] for name, of_row in results.runs.items()}
    return json.dumps({"result": found, "runs": runs}, indent=1)


@click.command()
@click.option("--rows", metavar="A,B", help=f"Only these, of: {', '.join(ROWS)}.")
@click.option("--runs", default=1, type=click.IntRange(min=1), help="Runs of each row; medians are reported.")
@click.option(
    "--scale", default=1.0, type=click.FloatRange(0, 1, min_open=True), help="Length of all cases; 0.1: a try."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Keep each run's figures as JSON.")
@click.option("--plot", "picture", type=click.Path(dir_okay=False, path_type=Path), help="Draw the result as a PNG.")
def main(rows: str | None, runs: int, scale: float, as_json: bool, out: Path | None, picture: Path | None) -> None:
    """What gateways cost on the same work, Enginehouse among them. Exit 1: an answer was wrong, or a row failed."""
    results = run(choose(rows), runs, scale)
    found = report.document(results)
    print(json.dumps(found, indent=2) if as_json else report.table(found))
    if out is not None:
        out.write_text(raw(results, found))
    if picture is not None:
        try:
            plot.draw(found, picture, tell)
        except plot.PlotError as error:
            raise click.ClickException(str(error)) from None
    sys.exit(0 if results.all_right else 1)


if __name__ == "__main__":
    # As by Ctrl-C, so that it ends with all that it started; a shell's background job would ignore that, too.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    main(prog_name="python -m benchmarks.gateway")

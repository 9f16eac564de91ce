"""`python -m tests.fuzz`: bad input by the hundred thousand, asked of the ingress's own application in this process."""

import logging
import sys
import time

import click

from tests.fuzz import campaign, table
from tests.fuzz.inputs import from_token
from tests.fuzz.trial import Trial, trial


def run(inputs: int, seed: int) -> list[campaign.Row]:
    began = time.monotonic()

    def tell(row: campaign.Row) -> None:
        print(f"{time.monotonic() - began:7.0f} s  {row.target}: {row.inputs}", file=sys.stderr, flush=True)

    with campaign.elsewhere(), trial() as asked:
        return [campaign.run(asked, name, share, seed, tell) for name, share in campaign.shares(inputs).items()]


def replay(asked: Trial, token: str) -> bool:
    """Send one input again. Whether all was well."""
    answer, found = asked.judged(from_token(token))
    print(answer.status, *(f"{name.decode()}: {value!r}" for name, value in answer.headers), sep="\n")
    print(answer.body.decode(errors="replace"), *found, sep="\n\n")
    return not found


@click.command()
@click.option("--inputs", default=100_000, show_default=True, help="How many, of all targets together.")
@click.option("--seed", default=0, show_default=True, help="The same seed makes the same inputs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option("--replay", "token", help="Send one input again: the last line of a fault.")
def main(inputs: int, seed: int, as_json: bool, token: str | None) -> None:
    """Ask for what nobody should. Exit 1: an answer was a fault."""
    logging.getLogger("ray.serve").handlers.clear()  # what is logged is judged, not shown
    if token is not None:
        with trial() as asked:
            sys.exit(not replay(asked, token))
    rows = run(inputs, seed)
    print(*(fault for row in rows for fault in row.faults), sep="\n\n", file=sys.stderr)
    print(table.as_json(rows) if as_json else table.as_text(rows))
    sys.exit(any(row.faulty for row in rows))


if __name__ == "__main__":
    main(prog_name="python -m tests.fuzz")

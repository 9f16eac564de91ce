"""`python -m tests.faults`: what operators fear, done to a real server on purpose."""

import asyncio
import json
import logging
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import click

from tests.faults import alone, rows, soak  # noqa: F401 (they register what they do)
from tests.faults.rig import Rig, rigged
from tests.faults.suite import FULL, ROWS, SHORT, NotHereError, Row, Seen, Size, carry_out


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def choose(parts: tuple[str, ...], *, short: bool, soaking: bool) -> list[Row]:
    """The rows whose name has one of these in it; without any, all, but the soak in its long form, which is run alone.

    Raises:
        click.UsageError: there is none.
    """
    if parts:
        found = [each for each in ROWS.values() if any(part in each.name for part in parts)]
    else:
        found = [each for each in ROWS.values() if each.is_soak is soaking or short]
    if not found:
        raise click.UsageError(
            f"no fault's name has {' or '.join(map(repr, parts))} in it; there are: {', '.join(ROWS)}"
        )
    return found


def run(chosen: list[Row], rig: Rig | None, size: Size) -> dict[str, Seen]:
    found = {}
    for each in chosen:
        tell(f"{each.name} ...")
        try:
            found[each.name] = seen = asyncio.run(carry_out(each, rig, size))
        except NotHereError as error:
            tell(f"{each.name}: not done, for there is {error}")
            continue
        tell(f"{each.name}: {seen.seconds:.0f} s, {'; '.join(seen.misses) or 'as it must be'}; {counted(seen)}")
    return found


def run_all(chosen: list[Row], size: Size) -> dict[str, Seen]:
    """Those of the one server first; each of the others has the machine to itself."""
    found: dict[str, Seen] = {}
    if together := [each for each in chosen if each.run is not None]:
        with tempfile.TemporaryDirectory() as folder, rigged(Path(folder)) as rig:
            found |= run(together, rig, size)
    return found | run([each for each in chosen if each.alone is not None], None, size)


def counted(seen: Seen) -> str:
    return ", ".join(f"{what} {count:,g}" for what, count in seen.counts.items())


def as_text(found: Mapping[str, Seen]) -> str:
    """The table: markdown, for the document that has it too."""
    lines = ["| what is done | what must happen | counts | |", "| --- | --- | --- | --- |"]
    for name, seen in found.items():
        lines.append(f"| {name} | {ROWS[name].must} | {counted(seen)} | {'; '.join(seen.misses) or 'ok'} |")
    return "\n".join(lines)


@click.command()
@click.option("--short", is_flag=True, help="A tenth of it, as the tests do it.")
@click.option("--soak", "soaking", is_flag=True, help="Only mixed traffic with faults at random, for 25 minutes.")
@click.option("--fault", "parts", multiple=True, metavar="PART", help="Only those with this in their name; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def main(short: bool, soaking: bool, parts: tuple[str, ...], as_json: bool) -> None:
    """Kill, hang and change the parts of a real server under load, and count what its clients see. Exit 1: a miss."""
    logging.getLogger("ray.serve").setLevel(logging.ERROR)  # of this process's handles, among the progress
    chosen = choose(parts, short=short, soaking=soaking)
    found = run_all(chosen, SHORT if short else FULL)
    print(json.dumps({name: asdict(seen) for name, seen in found.items()}) if as_json else as_text(found))
    sys.exit(any(seen.misses for seen in found.values()))


if __name__ == "__main__":
    main(prog_name="python -m tests.faults")

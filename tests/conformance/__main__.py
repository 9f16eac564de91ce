"""`python -m tests.conformance`: the suite over every engine on this machine, or over a server that runs already."""

import asyncio
import logging
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import click

from tests.conformance import running, server_config, table
from tests.conformance.checks import CHECKS
from tests.conformance.suite import Check, Result
from tests.conformance.witness import joined
from tests.fakes.running import servers_of
from tests.live.server import serving
from tests.waiting import free_port

ENGINES = server_config.engines_here()


def choose(parts: tuple[str, ...]) -> dict[str, Check]:
    """The checks whose name or theme has one of these in it; without any, all.

    Raises:
        click.UsageError: there is none.
    """
    found = {
        name: found
        for name, found in CHECKS.items()
        if not parts or any(part.lower() in f"{found.theme}: {name}".lower() for part in parts)
    }
    if not found:
        raise click.UsageError(f"no check's name has {' or '.join(map(repr, parts))} in it")
    return found


def tell(engine: str, name: str, result: Result, seconds: float) -> None:
    why = f": {result.reason}" if result.outcome == "fail" else ""
    print(f"{engine:<14}{seconds:6.1f} s  {result.outcome:<8}{name}{why[:600]}", file=sys.stderr, flush=True)


def run_here(engines: tuple[str, ...], checks: Mapping[str, Check]) -> table.Results:
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        served = [name for name in ENGINES if name in engines or (name == server_config.BEHIND and "openai" in engines)]
        config = server_config.write(served, port, Path(folder))
        print(f"starting a server with {', '.join(served)}", file=sys.stderr, flush=True)
        _end_on_signals()
        with servers_of(config), serving(config, port, environ=server_config.environ()) as server, joined(server):
            _end_on_signals()  # again: Ray has set its own, which end the process at once
            return asyncio.run(running.run_engines(server, dict.fromkeys(engines, checks), tell))


def _end_on_signals() -> None:
    """Stop the server too when this is stopped, also where a shell had SIGINT ignored."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)


def _end(number: int, _: object) -> None:
    sys.exit(128 + number)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option("--engine", "engines", multiple=True, type=click.Choice(ENGINES), help="Only this one; repeatable.")
@click.option("--check", "parts", multiple=True, metavar="PART", help="Only checks with this in theme or name.")
@click.option("--url", help="Run against a server that runs already, at this address.")
@click.option("--model", help="With --url: the model to ask for.")
def main(as_json: bool, engines: tuple[str, ...], parts: tuple[str, ...], url: str | None, model: str | None) -> None:
    """Run one suite of checks over every engine on this machine. Exit 1: a check failed."""
    logging.getLogger("ray.serve").setLevel(logging.ERROR)  # of this process's handles, among the progress
    checks = choose(parts)
    if (url is None) != (model is None) or (url and engines):
        raise click.UsageError("--url and --model go together, and without --engine")
    if url and model:
        results: table.Results = asyncio.run(running.run_url(url, model, checks, tell))
    else:
        results = run_here(engines or tuple(ENGINES), checks)
    print(table.as_json(results) if as_json else table.as_text(results, checks))
    sys.exit(table.failed(results))


if __name__ == "__main__":
    main(prog_name="python -m tests.conformance")

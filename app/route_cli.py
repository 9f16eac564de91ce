"""`enginehouse route`: where requests go."""

import json
import sys
from pathlib import Path
from typing import IO

import click
from pydantic import ValidationError

from app.check import check_file
from app.cli_options import as_json, config_option, print_table
from app.routing.explain import ConfiguredPools, Explanation, explain, read_examples
from deployments.errors import dotted, sentence

HEADS = ("request", "type", "pool", "engine", "why", "passed over")


@click.group("route")
def route_group() -> None:
    """Where requests go."""


@route_group.command("explain")
@click.argument("request_file", metavar="REQUEST", type=click.File("rb"))
@config_option
@click.option("--down", metavar="POOL", multiple=True, help="As if this pool were down.")
@as_json
def explain_command(request_file: IO[bytes], config: Path, down: tuple[str, ...], json_: bool) -> None:
    """Which pool a config sends a request to, and why. Starts nothing.

    \b
    REQUEST is a JSON file ("-": standard input). It holds a request's body; or
    {"body": {...}, "path": "/v1/...", "headers": {...}, "key": "its name"};
    or a list of these; or one on each line. Several are shown as a table,
    where "name" is what a request is called.
    """
    checked = check_file(config)
    if checked.problems or checked.ingress is None:
        for problem in checked.problems:
            click.echo(f"{config}: {problem}", err=True)
        sys.exit(1)
    if unknown := [pool for pool in down if pool not in checked.pools]:
        raise click.UsageError(f"{config} has no pool '{unknown[0]}'; it has: {', '.join(checked.pools)}.")
    try:
        examples = list(read_examples(request_file.read()))
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)[0]
        message = f"{request_file.name}: {dotted(details['loc'])}: {sentence(details['msg'])}"
        raise click.ClickException(message) from None
    except ValueError as error:
        raise click.ClickException(f"{request_file.name}: not JSON: {error}.") from None
    found = list(explain(checked.ingress, examples, ConfiguredPools(checked.pools, down)))
    if json_:
        documents = [each.model_dump() for each in found]
        click.echo(json.dumps(documents[0] if len(documents) == 1 else documents, indent=2))
    elif len(found) == 1:
        click.echo(_text(found[0]))
    else:
        print_table(HEADS, map(_row, found))
    sys.exit(1 if any(each.error for each in found) else 0)


def _row(found: Explanation) -> tuple[str, ...]:
    passed = "; ".join(f"{over['pool']}: {over['why']}" for over in found.passed_over)
    where = (found.request_type, found.pool, found.engine)
    return found.name, *(each or "-" for each in where), found.error or found.reason, passed or "-"


def _text(found: Explanation) -> str:
    if found.request_type is None:
        return f"error         {found.error}"
    lines = [
        f"model         {found.model}",
        f"request type  {found.request_type}",
        f"pool          {found.pool or '-'}" + (f"  ({found.engine})" if found.engine else ""),
        f"reason        {found.reason}",
        *(f"passed over   {over['pool']}: {over['why']}" for over in found.passed_over),
    ]
    if found.fallbacks:
        lines.append(f"fallbacks     {', '.join(found.fallbacks)}")
    if found.shadow:
        lines.append(f"shadow        {found.shadow}")
    if found.error:
        lines.append(f"error         {found.error}")
    return "\n".join(lines)

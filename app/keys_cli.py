"""`enginehouse keys`: making API keys, and showing which there are."""

import json
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from app.access.keys import ALL, Key, read_key
from app.access.keys_file import KeysError, add_key, as_document, as_yaml, read_keys
from app.access.secret import digest, new_secret
from app.access.settings import KeyRecord
from app.cli_options import as_json, print_table
from deployments.errors import dotted, sentence

HEADS = ("NAME", "TENANT", "MODELS", "ADMIN", "REQUESTS/MIN", "TOKENS/MIN", "CONCURRENT")
limit = click.IntRange(min=1)


@click.group("keys")
def keys_group() -> None:
    """API keys."""


@keys_group.command("new")
@click.argument("name", metavar="NAME")
@click.option("--tenant", help="Whose it is. [default: NAME]")
@click.option("--admin", is_flag=True, help="It may load and unload adapters; for answers, say --model, too.")
@click.option("--model", "models", metavar="GLOB", multiple=True, help="A model that it may ask for. [default: all]")
@click.option("--requests-per-minute", type=limit, help="Most requests a minute.")
@click.option("--tokens-per-minute", type=limit, help="Most tokens a minute, of prompts and answers.")
@click.option("--max-concurrent", type=limit, help="Most requests that are under way.")
@click.option("--file", type=click.Path(path_type=Path), help="Add the record to this file, or make it.")
@as_json
def new(name: str, file: Path | None, json_: bool, **said: Any) -> None:
    """Make a key: print its secret, this once, and the record for the keys file, which has only a hash of it."""
    secret = new_secret()
    models = said.pop("models") or None
    try:
        record = KeyRecord(name=name, models=models, sha256=digest(secret.encode()).hex(), **said)
        if file is not None:
            add_key(file, record)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)[0]
        raise click.UsageError(f"{dotted(details['loc'])}: {sentence(details['msg'])}") from None
    except KeysError as error:
        raise click.ClickException(str(error)) from None
    document = as_document(record)
    if json_:
        click.echo(json.dumps({"secret": secret, "record": document, "file": file and str(file)}, indent=2))
        return
    click.echo(f"The secret, which is shown this once; clients send it as their API key:\n\n  {secret}\n")
    where = "Put this into the keys file" if file is None else f"Added to {file}"
    click.echo(f"{where}:\n\n{as_yaml(document)}", nl=False)


@keys_group.command("list")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@as_json
def list_keys(file: Path, json_: bool) -> None:
    """The keys of a file, and their limits. Hashes aren't shown."""
    try:
        keys = [read_key(record) for record in read_keys(file)]
    except KeysError as error:
        raise click.ClickException(str(error)) from None
    if json_:
        click.echo(json.dumps({"keys": [_document(key) for key in keys]}, indent=2))
        return
    print_table(HEADS, map(_row, keys))


def _document(key: Key) -> dict[str, Any]:
    limits = {name: getattr(key.limits, name) for name in key.limits.__slots__}
    return {"name": key.name, "tenant": key.tenant, "models": list(key.models), "admin": key.admin, **limits}


def _row(key: Key) -> tuple[str, ...]:
    models = "all" if key.models == (ALL,) else ", ".join(key.models) or "none"
    limits = (getattr(key.limits, name) for name in key.limits.__slots__)
    return key.name, key.tenant, models, "yes" if key.admin else "-", *(str(each or "-") for each in limits)

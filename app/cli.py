"""The command line."""

import dataclasses
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from app import capabilities
from app.check import Checked, check_file
from app.cli_options import as_json, config_option, print_table
from app.doctor import doctor
from app.keys_cli import keys_group
from app.route_cli import route_group
from deployments import environment_build, environments, models
from deployments.config import PoolConfig
from deployments.environments import InstallError, UnknownEngineError
from deployments.models import ModelNotFoundError
from deployments.tensorrt_build import BuildError

config_argument = click.argument("config", type=click.Path(path_type=Path))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="enginehouse")
def main() -> None:
    """One door, many engines: LLM engine pools on Ray Serve behind an OpenAI-compatible ingress.

    \b
    enginehouse serve serve_config.yaml     serve what a config says, installing what is missing
    enginehouse check serve_config.yaml     is a config right? starts nothing
    enginehouse capabilities                what each model of a config can
    enginehouse route explain REQUEST.json  where a config sends a request, and why
    enginehouse keys new NAME               an API key: its secret, and its record for the keys file
    enginehouse doctor                      does each engine work on this machine?
    """


main.add_command(doctor)
main.add_command(route_group)
main.add_command(keys_group)


@main.command()
@config_argument
@as_json
def check(config: Path, json_: bool) -> None:
    """Check a config file, without starting anything. Exit status 1 if something is wrong."""
    checked = check_file(config)
    if json_:
        problems = [dataclasses.asdict(problem) for problem in checked.problems]
        _print_json({"file": str(config), "ok": not problems, "problems": problems})
    else:
        _print_problems(config, checked)
        if not checked.problems:
            click.echo(f"{config}: OK: {_summary(checked)}")
    sys.exit(1 if checked.problems else 0)


def _print_problems(config: Path, checked: Checked) -> None:
    for problem in checked.problems:
        click.echo(f"{config}: {problem}", err=True)


def _summary(checked: Checked) -> str:
    names = checked.ingress.models if checked.ingress else {}
    pools = ", ".join(f"{name} on {pool.engine}" for name, pool in checked.pools.items())
    return f"{len(names)} model(s): {', '.join(names)}; {len(checked.pools)} pool(s): {pools}"


@main.command()
@click.argument(
    "config",
    type=click.Path(path_type=Path),
    default="serve_config.yaml",
    envvar="ENGINEHOUSE_CONFIG",
)
@click.option("--host", envvar="ENGINEHOUSE_HOST", help="Address to listen on. [default: the config's]")
@click.option("--port", envvar="ENGINEHOUSE_PORT", type=click.IntRange(1, 65535), help="[default: the config's]")
@click.option("--address", default="local", show_default=True, help="Ray cluster to serve on; local: start one here.")
@as_json
def serve(config: Path, host: str | None, port: int | None, address: str, json_: bool) -> None:
    """Serve what CONFIG says, until Ctrl-C.

    Installs the engine environments and fetches the models that are missing, then runs `serve run`.
    """
    from app.runner import RunError, run

    checked = check_file(config)
    _print_problems(config, checked)
    if checked.problems or checked.file is None:
        sys.exit(1)
    keys = checked.ingress is not None and checked.ingress.access.has_keys
    ready = _ready_json if json_ else partial(_invite, keys=keys)
    try:
        sys.exit(run(config, checked, host=host, port=port, address=address, report=_progress, ready=ready))
    except (RunError, InstallError, ModelNotFoundError) as error:
        _fail(error)


def _invite(url: str, names: list[str], *, keys: bool) -> None:
    """Say that it serves, with a command that works; where there are keys, with one of them in API_KEY."""
    if not names:
        click.echo(f"Serving no model yet on {url} (Ctrl-C stops).")
        return
    question = [{"role": "user", "content": "What is the capital of France?"}]
    body = json.dumps({"model": names[0], "messages": question, "temperature": 0})
    click.echo(f"Serving {', '.join(names)} on {url} (Ctrl-C stops). Try:\n")
    key = '-H "authorization: Bearer $API_KEY" ' if keys else ""
    click.echo(f"  curl {url}/v1/chat/completions {key}-H 'content-type: application/json' -d '{body}'\n")


def _ready_json(url: str, names: list[str]) -> None:
    _print_json({"url": url, "models": names})


@main.command("capabilities")
@config_option
@as_json
def show_capabilities(config: Path, json_: bool) -> None:
    """What each model of a config can: endpoints, tools, context. Starts nothing."""
    checked = check_file(config)
    if checked.problems or checked.ingress is None:
        _print_problems(config, checked)
        sys.exit(1)
    documents = capabilities.model_documents(checked.ingress, checked.pools)
    if json_:
        _print_json({"models": documents})
    else:
        print_table(capabilities.HEADS, capabilities.rows(documents))


@main.group()
def engines() -> None:
    """The environments that engines run in."""


@engines.command("list")
@as_json
def engines_list(json_: bool) -> None:
    """Which engines there are, and which of their environments are installed."""
    listings = environments.describe()
    if json_:
        _print_json({"engines": [dataclasses.asdict(listing) for listing in listings]})
        return
    rows = [
        (item.engine, item.variant, item.version or "-", "yes" if item.installed else "no", item.path)
        for item in listings
        if item.here
    ]
    print_table(("ENGINE", "VARIANT", "VERSION", "INSTALLED", "WHERE"), rows)


@engines.command("install")
@click.argument("names", metavar="ENGINE...", nargs=-1, required=True)
@as_json
def engines_install(names: tuple[str, ...], json_: bool) -> None:
    """Build the environment of each ENGINE on this machine, unless it is there."""
    built = []
    for name in names:
        try:
            environment = environment_build.install(name, _progress)
        except (UnknownEngineError, InstallError) as error:
            _fail(error)
        built.append({"engine": environment.engine, "variant": environment.variant, "path": str(environment.folder)})
        if not json_:
            click.echo(f"{name}: installed in {environment.folder}")
    if json_:
        _print_json({"engines": built})


@main.command("build-engine")
@click.argument("names", metavar="[POOL]...", nargs=-1)
@config_option
@as_json
def build_engine(names: tuple[str, ...], config: Path, json_: bool) -> None:
    """Compile the TensorRT-LLM engines of a config's pools, on the GPU that will serve, before a pool does.

    Takes minutes to hours, once; a pool that starts meanwhile waits for it.
    """
    checked = check_file(config)
    if checked.problems:
        _print_problems(config, checked)
        sys.exit(1)
    if unknown := set(names) - checked.pools.keys():
        _fail(ValueError(f"{config} has no pool '{min(unknown)}'; it has {', '.join(checked.pools)}"))
    built = {}
    try:
        for name, pool in checked.pools.items():
            if (not names or name in names) and (folder := compiled_engine(pool, _progress)):
                built[name] = str(folder)
                if not json_:
                    click.echo(f"{name}: {folder}")
    except BuildError as error:
        _fail(error)
    if json_:
        _print_json({"engines": built})
    elif not built:
        click.echo("None of these pools compiles an engine: that takes 'engine: tensorrt_llm' in 'mode: tensorrt'.")


@main.group("models")
def models_group() -> None:
    """The models on this machine."""


@models_group.command("prepare")
@click.argument("names", metavar="MODEL...", nargs=-1, required=True)
@click.option("--revision", help="Branch, tag or commit of a hub id.")
@as_json
def models_prepare(names: tuple[str, ...], revision: str | None, json_: bool) -> None:
    """Fetch each MODEL: a bundled name, a hub id, or a local folder, which is only checked."""
    paths = {}
    for name in names:
        try:
            paths[name] = str(models.resolve(name, revision, _progress))
        except ModelNotFoundError as error:
            _fail(error)
        if not json_:
            click.echo(f"{name}: {paths[name]}")
    if json_:
        _print_json({"models": paths})


def compiled_engine(pool: PoolConfig, report: environments.Report) -> Path | None:
    """The folder of the engine that the pool compiles, compiled now if need be; None: it compiles none."""
    from deployments.tensorrt_llm import TensorrtLLMArgs, compiled

    args = pool.typed_engine_args()
    if not isinstance(args, TensorrtLLMArgs) or args.mode != "tensorrt":
        return None
    return compiled(pool.pool_model, args, report)


def _progress(line: str) -> None:
    click.echo(f"  {line}", err=True)


def _fail(error: Exception) -> None:
    click.echo(f"enginehouse: {error}", err=True)
    sys.exit(1)


def _print_json(document: dict[str, Any]) -> None:
    click.echo(json.dumps(document, indent=2))

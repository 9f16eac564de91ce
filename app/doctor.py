"""`enginehouse doctor`: what of the engines works on this machine. Each check passes or fails, with a sentence."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from app.cli_options import as_json
from deployments import environments, registry
from deployments.config import PoolConfig
from deployments.doctor import CONTRACTS, Finding

IMPORT_S = 300.0  # for a first import of an engine, from a cold disk


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A finding, and of what."""

    subject: str  # an engine, or "pool NAME"
    finding: Finding


def of_engine(engine: str) -> Iterator[Diagnosis]:
    """Whether an engine can be had here: its environment, its package, and the contract that it was written to."""
    if engine in environments.ENGINES:
        if not environments.available(engine):
            yield Diagnosis(engine, Finding("environment", "fail", environments.how_to_have(engine)))
            return
        where = environments.environment(engine).folder if environments.is_installed(engine) else sys.prefix
        yield Diagnosis(engine, Finding("environment", "pass", str(where)))
        yield Diagnosis(engine, _imported(engine))
    else:
        yield Diagnosis(engine, Finding("environment", "pass", "built in"))
    if engine in CONTRACTS:
        code = (
            "import json, dataclasses, sys; from deployments import doctor; "
            "json.dump(dataclasses.asdict(doctor.contract(sys.argv[1])), sys.stdout)"
        )
        done = _run([*python_of(engine), "-c", code, engine])
        yield Diagnosis(engine, _last_line(done) or Finding("contract", "fail", _tail(done.stderr)))


def of_pool(name: str, pool: PoolConfig) -> Iterator[Diagnosis]:
    """A pool's engine, started, used and stopped outside of Ray."""
    reading, writing = os.pipe()
    command = [*python_of(pool.engine), "-m", "deployments.doctor", str(writing)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=[writing], text=True
    )
    os.close(writing)
    with process, os.fdopen(reading) as findings:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(pool.model_dump_json())
        process.stdin.close()
        for line in findings:
            yield Diagnosis(f"pool {name}", Finding(**json.loads(line)))
        errors = process.stderr.read()
    if process.returncode != 0:
        detail = f"the engine's process ended with status {process.returncode}: {_tail(errors)}"
        yield Diagnosis(f"pool {name}", Finding("process", "fail", detail))


def python_of(engine: str) -> list[str]:
    """The command of the Python that a replica of this engine runs in."""
    if engine in environments.ENGINES:
        return [str(Path(sys.executable).with_name("engine-python")), engine]
    return [sys.executable]


def _imported(engine: str) -> Finding:
    code = f"import {engine}; print(); print(getattr({engine}, '__version__', 'of no stated version'))"
    done = _run([*python_of(engine), "-c", code])
    if done.returncode:
        return Finding("import", "fail", _tail(done.stderr))
    return Finding("import", "pass", done.stdout.strip().splitlines()[-1])


def _run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_S)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"not done within {IMPORT_S:.0f} s")


def _last_line(done: "subprocess.CompletedProcess[str]") -> Finding | None:
    lines = done.stdout.strip().splitlines()
    return Finding(**json.loads(lines[-1])) if done.returncode == 0 and lines else None


def _tail(text: str) -> str:
    """The last lines of a traceback: what was wrong."""
    return " ".join(line.strip() for line in text.strip().splitlines()[-3:]) or "it said nothing"


def diagnose(engines: Iterable[str], pools: dict[str, PoolConfig]) -> Iterator[Diagnosis]:
    """Everything of these engines, and then of the pools that are on one of them."""
    wanted = list(engines)
    well = set(wanted)
    for engine in wanted:
        for diagnosis in of_engine(engine):
            yield diagnosis
            if diagnosis.finding.outcome == "fail":
                well.discard(engine)
    for name, pool in pools.items():
        if pool.engine in well:
            yield from of_pool(name, pool)
        elif pool.engine in wanted:
            yield Diagnosis(f"pool {name}", Finding("start", "skip", f"{pool.engine} isn't as it should be"))


@click.command()
@click.option("--engine", "names", multiple=True, help="Only this engine. [default: all, or those of the config]")
@click.option("--config", type=click.Path(path_type=Path), help="Start, use and stop the engines of its pools too.")
@as_json
def doctor(names: tuple[str, ...], config: Path | None, json_: bool) -> None:
    """Does each engine work on this machine? Exit status 1 if a check fails.

    \b
    enginehouse doctor --engine vllm                              its environment and its package
    enginehouse doctor --engine vllm --config serve_config.yaml   and an answer, a stream, an abort
    """
    from app.check import check_file

    pools: dict[str, PoolConfig] = {}
    if config is not None:
        checked = check_file(config)
        if checked.problems:
            raise click.ClickException("\n".join(f"{config}: {problem}" for problem in checked.problems))
        pools = checked.pools
    if unknown := set(names) - registry.ENGINES.keys():
        raise click.BadParameter(f"no engine {min(unknown)!r}; there are: {', '.join(sorted(registry.ENGINES))}")
    engines = names or (tuple({pool.engine for pool in pools.values()}) if config else tuple(registry.ENGINES))
    found = []
    for diagnosis in diagnose(sorted(engines), pools):
        found.append(diagnosis)
        if not json_:
            finding = diagnosis.finding
            click.echo(f"{finding.outcome.upper():4}  {diagnosis.subject}: {finding.check}: {finding.detail}")
    if json_:
        click.echo(json.dumps({"checks": [_document(diagnosis) for diagnosis in found]}, indent=2))
    sys.exit(any(diagnosis.finding.outcome == "fail" for diagnosis in found))


def _document(diagnosis: Diagnosis) -> dict[str, Any]:
    return {"subject": diagnosis.subject, **asdict(diagnosis.finding)}

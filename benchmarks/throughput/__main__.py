"""`python -m benchmarks.throughput`: an engine's tokens a second through the ingress, beside itself in process."""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import click

from app.doctor import python_of
from app.flags import free_port
from benchmarks.gateway.client import Connection
from benchmarks.gateway.engine import MODEL
from benchmarks.gateway.processes import ROOT, Launch, running
from benchmarks.gateway.rows import Place, enginehouse_config, ray_environ
from benchmarks.throughput import load
from benchmarks.throughput.load import Done, Round
from deployments.config import PoolConfig

POOL = {"model": "smollm2-135m-instruct", "served_name": MODEL, "num_cpus": 0.5, "gpus": 0}
WARM_UP = Round(requests=8, clients=8)


class InProcess:
    """The engine without a server."""

    def __init__(self, requests: IO[str], results: IO[str]) -> None:
        self._requests = requests
        self._results = results

    def run(self, work: Round) -> Done:
        print(json.dumps(asdict(work)), file=self._requests, flush=True)
        return Done(**json.loads(self._results.readline()))


class ThroughIngress:
    """The same engine as a pool of a server."""

    def __init__(self, port: int) -> None:
        self._port = port

    def run(self, work: Round) -> Done:
        return asyncio.run(self._run(work))

    async def _run(self, work: Round) -> Done:
        idle = [await Connection.open(self._port) for _ in range(work.clients)]

        async def ask(number: int) -> bytes:
            connection = idle.pop()
            body = load.body(MODEL, number)
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: here\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            answer = await connection.ask(head + body)
            idle.append(connection)
            if answer.failure or answer.status != 200:
                raise ValueError(f"{answer.failure or answer.status}: {answer.body[:300]!r}")
            return answer.body

        try:
            return await load.run(work, ask)
        finally:
            for connection in idle:
                connection.close()


@contextmanager
def in_process(pool: dict[str, Any], threads: int) -> Iterator[InProcess]:
    results, write_line = os.pipe()
    command = [*python_of(pool["engine"]), "-m", "benchmarks.throughput.in_process", str(write_line)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(threads)}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, pass_fds=[write_line], text=True, env=environ)
    os.close(write_line)
    assert process.stdin is not None
    try:
        print(json.dumps(pool), file=process.stdin, flush=True)
        with os.fdopen(results) as lines:
            if not lines.readline():
                raise click.ClickException(f"the engine didn't start: status {process.wait()}")
            yield InProcess(process.stdin, lines)
    finally:
        process.stdin.close()
        process.wait(60)


@contextmanager
def through_ingress(pool: dict[str, Any], threads: int) -> Iterator[ThroughIngress]:
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as name:
        place = Place(free_port(), Path(name), upstream_port=0)
        config = enginehouse_config(place, "deployments.pool:build", pool)
        command = [str(Path(sys.executable).with_name("enginehouse")), "serve", str(config), "--json"]
        environ = {**ray_environ(place), "OMP_NUM_THREADS": str(threads)}
        with running(Launch(command, environ), place.folder / "log") as server:
            while f'"models": [\n    "{MODEL}"' not in server.log.read_text():
                server.refuse_ended()
                time.sleep(0.5)
            yield ThroughIngress(place.port)


@click.command()
@click.option("--engine", default="vllm", show_default=True)
@click.option("--rounds", default=6, show_default=True, type=click.IntRange(1))
@click.option("--requests", default=48, show_default=True, type=click.IntRange(1), help="Of each round.")
@click.option("--clients", default=16, show_default=True, type=click.IntRange(1))
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1), help="That the engine computes with.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(engine: str, rounds: int, requests: int, clients: int, threads: int, as_json: bool) -> None:
    """An engine's tokens a second through the ingress, beside the same engine called in process, in turn."""
    args = {"max_model_len": 2048, "max_num_seqs": clients} if engine == "vllm" else {}
    pool = PoolConfig.model_validate({**POOL, "engine": engine, "engine_args": args}).model_dump()
    work, pairs = Round(requests, clients), list[tuple[Done, Done]]()
    with in_process(pool, threads) as alone, through_ingress(pool, threads) as served:
        for way in (alone, served):
            way.run(WARM_UP)
        for number in range(rounds):
            first, second = (alone, served) if number % 2 == 0 else (served, alone)
            done = {way: way.run(work) for way in (first, second)}
            pairs.append((done[alone], done[served]))
            rates = [each.tokens_per_s for each in pairs[-1]]
            click.echo(f"{rates[0]:7.1f} tokens/s in process, {rates[1]:7.1f} through the ingress", err=True)
    ratio = statistics.median(served.tokens_per_s / alone.tokens_per_s for alone, served in pairs)
    medians = [statistics.median(each.tokens_per_s for each in side) for side in zip(*pairs, strict=True)]
    names = ("in_process_tokens_per_s", "through_ingress_tokens_per_s", "ratio")
    found = dict(zip(names, (*medians, ratio), strict=True))
    click.echo(json.dumps(found) if as_json else f"{engine}: {ratio:.1%} of the engine's own throughput")


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.throughput")

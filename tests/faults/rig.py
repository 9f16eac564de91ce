"""The server that faults are injected into: `enginehouse serve` with two ingress replicas and pools of every kind."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.conformance.witness import dashboard_of, joined
from tests.faults.load import Texts, learn
from tests.live.configs import pool_application, serve_config
from tests.live.server import ROOT, Server, deploy, serving_document
from tests.waiting import free_port, wait_until

INGRESSES = 2
LOOKS = 5 * INGRESSES  # each is by a connection of its own, which HAProxy gives to one of them
REPLICAS = 3  # of the pool `steady`
DIES_AFTER = 400  # tokens
BREAKER = {"window": 8, "min_failures": 3, "open_s": 2}
TIMEOUTS = {"first_token_s": 5, "between_tokens_s": 5, "total_s": 20}
PACED: Any = {"token_interval_s": 0.01, "answer_tokens": 4000}
# A prompt of 500 tokens takes it seconds, in steps of 80 ms.
THOROUGH = {
    "prefill_tokens_per_s": 200,
    "max_num_batched_tokens": 16,
    "max_num_seqs": 16,
    "step_s": 0.02,
    "answer_tokens": 4000,
}
MODELS = {  # the first of each: its pools
    "alone": ["steady"],
    "backed": ["steady", "spare"],
    "spare": ["spare"],
    "mortal": ["mortal"],
    "small": ["small", "spare"],
    "stuck": ["stuck", "spare"],
    "outside": ["outside", "spare"],
    "thorough": ["thorough"],
}


def pool(name: str, engine: Any = "simulated", *, serve: Any = None, **engine_args: Any) -> Any:
    args = {"engine": engine, "model": name, "served_name": "m", "num_cpus": 0.05, "engine_args": engine_args}
    return pool_application(name, serve or {}, args)


def config(port: int, server_port: int) -> dict[str, Any]:
    pools = [
        pool("steady", serve={"num_replicas": REPLICAS}, **PACED),
        pool("spare", **PACED),
        pool("mortal", **PACED, faults={"die_after_tokens": DIES_AFTER}),
        pool("small", serve={"max_ongoing_requests": 2, "max_queued_requests": 1}, **PACED),
        pool("stuck", **PACED),
        pool("outside", "tgi", urls=[f"http://127.0.0.1:{server_port}"]),
        pool("thorough", **THOROUGH),
    ]
    settings = {
        "models": {name: {"pools": pools} for name, pools in MODELS.items()},
        "resilience": {"breaker": BREAKER},
        "admission": {"timeouts": TIMEOUTS},
    }
    document = serve_config(port, settings, pools, num_replicas=INGRESSES)
    return {**document, "logging_config": {"enable_access_log": False}}


class Outside:
    """A server of another kind that a pool is a proxy of: the stand-in for TGI."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.fakes.tgi", "--port", str(self.port)]
        self.process = subprocess.Popen(command, cwd=ROOT)
        wait_until(self._answers, "the stand-in for TGI")

    def _answers(self) -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/health", timeout=5).is_success
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@dataclass(frozen=True, slots=True)
class Census:
    """What a server holds at one moment."""

    ingress_mb: float  # resident, all replicas together
    pools_mb: float
    descriptors: int
    tasks: int  # asyncio's, in the ingress
    tickets: int  # streams that it waits for, requests that were let in or wait
    busy: int  # requests that the engines have
    processes: Mapping[str, int]  # by what they are


@dataclass(slots=True)
class Rig:
    """A running server, and what can be done to it."""

    server: Server
    outside: Outside | None
    document: dict[str, Any]  # its configuration
    folder: Path
    context: Any  # of this process as a driver of its Ray
    _texts: Texts | None = None

    @property
    def url(self) -> str:
        return self.server.url

    async def texts(self) -> Texts:
        """What the simulated engines answer."""
        if self._texts is None:
            self._texts = await learn(self.url, "spare")
        return self._texts

    async def stats(self, application: str, deployment: str = "Pool") -> list[dict[str, Any]]:
        """Each replica's own counts."""
        from ray import serve

        handle: Any = serve.get_deployment_handle(deployment, app_name=application)
        return list(await handle.broadcast("stats").results_async(timeout_s=30))

    async def census(self) -> "Census":
        """What its long-lived processes hold. None of these is ever killed but by a fault of its own."""
        held = await self.stats("ingress", "Ingress")
        processes = {name: self.server.replicas(name) for name in ("ingress", "spare", "small", "outside", "thorough")}
        every = [process for each in processes.values() for process in each]
        return Census(
            ingress_mb=sum(process.memory_info().rss for process in processes["ingress"]) / 1e6,
            pools_mb=sum(process.memory_info().rss for process in every if process not in processes["ingress"]) / 1e6,
            descriptors=sum(process.num_fds() for process in every),
            tasks=sum(each["tasks"] for each in held),
            tickets=sum(each["streams"] + each["running"] + each["queued"] for each in held),
            busy=sum([await self.busy(name) for name in self.pools]),
            processes=self.server.kinds(),
        )

    @property
    def pools(self) -> list[str]:
        return [app["name"] for app in self.document["applications"] if app["name"] != "ingress"]

    async def busy(self, application: str) -> int:
        """Requests that the engines of a pool have."""
        return sum(each["running"] + each["waiting"] for each in await self.stats(application))

    def signal(self, application: str, number: signal.Signals = signal.SIGKILL) -> psutil.Process:
        """Send one of its replicas a signal."""
        victim = self.server.replicas(application)[0]
        os.kill(victim.pid, number)
        return victim

    async def until(self, true: Callable[[], object], what: str, seconds: float = 120) -> None:
        await asyncio.to_thread(wait_until, true, what, seconds, 0.1)

    async def until_whole(self) -> None:
        """Return once every pool has all of its replicas, and the ingress too, and all of its replicas know."""

        def whole() -> bool:
            wanted = {
                app["name"]: next(iter(app["deployments"])).get("num_replicas", 1)
                for app in self.document["applications"]
            }
            there = all(
                self.running(name) == count == len(self.server.replicas(name)) for name, count in wanted.items()
            )
            # In this order: what the ingress knew before may be what was before the fault.
            return there and all(self.server.is_ready() for _ in range(LOOKS))

        await self.until(whole, "every pool is whole again", 180)

    def running(self, application: str) -> int:
        """Replicas that Serve says run."""
        from ray import serve

        # An application that is being deployed has none for a moment.
        deployments = list(serve.status().applications[application].deployments.values())
        states = {str(state): count for each in deployments for state, count in each.replica_states.items() if count}
        return states.get("RUNNING", 0) if len(states) == 1 else -1

    def application(self, name: str) -> dict[str, Any]:
        """Its part of the configuration, to be changed and deployed."""
        found: dict[str, Any] = next(app for app in self.document["applications"] if app["name"] == name)
        return found

    async def deploy(self) -> None:
        """`serve deploy` of the configuration as it is now."""
        await asyncio.to_thread(deploy, dashboard_of(self.context), self.document, self.folder)

    def counted(self, metric: str, **tags: str) -> float:
        """A counter's value, all processes together, from Ray's own metrics endpoint, which is some seconds late."""
        import ray

        port = ray.nodes()[0]["MetricsExportPort"]  # type: ignore[no-untyped-call]
        lines = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text.splitlines()
        wanted = [f'{key}="{value}"' for key, value in tags.items()]
        found = [line for line in lines if re.match(rf"ray_{metric}\b", line) and all(tag in line for tag in wanted)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)


@contextmanager
def rigged(folder: Path) -> Iterator[Rig]:
    """The server of all rows, ready, until the block ends."""
    port, outside = free_port(), Outside(free_port())
    outside.start()
    try:
        with rigged_with(config(port, outside.port), folder, outside) as rig:
            yield rig
    finally:
        outside.kill()


@contextmanager
def rigged_with(document: dict[str, Any], folder: Path, outside: Outside | None = None) -> Iterator[Rig]:
    """A server of this configuration."""
    with serving_document(document, folder) as server, joined(server) as context:
        yield Rig(server, outside, document, folder, context)

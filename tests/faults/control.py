"""What manages a server taken away from it: Serve's controller, or the whole head of a Ray cluster.

The cluster is two Ray nodes on this machine: a head that has nothing but what Ray and Serve manage with, and a worker
that has the replicas, the ingress's too, and its own HAProxy, which clients ask.
"""

import asyncio
import copy
import csv
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from app.flags import free_port
from tests.faults.load import Clients, Tally
from tests.live.nodes import HEAD, START_S, Nodes, nodes
from tests.live.server import Server, deploy
from tests.waiting import wait_until

MANAGED_S = 60.0
MANAGED = "managed"  # the model, and the pool, that are deployed to see whether they come

logger = logging.getLogger(__name__)


def missing(store: str) -> str | None:
    """What this machine lacks for a store; None where it has all."""
    return "no redis-server on PATH" if store == "redis" and shutil.which("redis-server") is None else None


@dataclass
class Cluster:
    """A running one."""

    nodes: Nodes
    config: dict[str, Any]
    stored: dict[str, str]  # the variables that have a head use the store
    head: "subprocess.Popen[bytes]"  # as it was started last

    @property
    def server(self) -> Server:
        return self.nodes.server

    @property
    def dashboard(self) -> str:
        return self.nodes.dashboard


@contextmanager
def clustered(config: dict[str, Any], store: str) -> Iterator[Cluster]:
    """Serve `config` by a head and a worker until the block ends. `store` (`rocksdb`, `redis`) is where the head keeps
    what it has to know after a restart."""
    with nodes() as cluster:
        stored = _store(store, cluster)
        head = cluster.start_head(**stored)
        cluster.server.process = cluster.start_node("worker", cpus=8)
        deploy(cluster.dashboard, config, cluster.folder)
        cluster.wait_until_ready()
        # Until then requests come by Serve's own proxy on the head, and are lost with it.
        wait_until(lambda: _send_to_ingress(cluster.folder), "HAProxy sends to the ingress itself", START_S)
        yield Cluster(cluster, config, stored, head)


def _store(store: str, cluster: Nodes) -> dict[str, str]:
    """Make the store; the variables that have a head use it."""
    if store == "rocksdb":
        return {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(cluster.folder / "gcs")}
    port = free_port()
    cluster.start("redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", ".")
    return {"RAY_REDIS_ADDRESS": f"127.0.0.1:{port}"}


def _send_to_ingress(folder: Path) -> bool:
    """Whether both nodes' HAProxy, by its own account, has a server up that is no fallback: an ingress replica."""
    sockets = list(folder.rglob("admin.sock"))
    return len(sockets) == 2 and all(map(_sends_to_ingress, sockets))


def _sends_to_ingress(admin: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client, suppress(OSError):
        client.settimeout(5)
        client.connect(str(admin))
        client.sendall(b"show stat\n")
        rows = csv.DictReader(client.makefile().read().removeprefix("# ").splitlines())
        return any(row["type"] == "2" and row["act"] == "1" and row["status"].startswith("UP") for row in rows)
    return False


@asynccontextmanager
async def asking(url: str, model: str, clients: int, tokens: int) -> AsyncIterator[Tally]:
    """Clients that ask until the block ends; then all that they have begun has ended too."""
    every = Clients(url, model, clients, tokens=tokens)
    running = asyncio.create_task(every.run(sys.maxsize))
    try:
        yield every.tally
    finally:
        every.stop()
        await running


async def kill_controller(server: Server) -> None:
    """SIGKILL to Serve's controller; returns once there is another."""
    [old] = await asyncio.to_thread(server.controllers)
    os.kill(old.pid, signal.SIGKILL)
    await _until(lambda: [each for each in server.controllers() if each != old], "another controller")


async def kill_head(cluster: Cluster) -> None:
    """SIGKILL to every process of the head: Ray's GCS, its raylet and dashboard, Serve's controller."""
    await asyncio.to_thread(cluster.nodes.kill, HEAD)
    await asyncio.to_thread(cluster.head.wait)


async def restart_head(cluster: Cluster) -> None:
    """The same command again, as whoever watches over the head would give it; returns once Serve answers."""
    # A file of the head's own machine, by which Ray, seeing the worker's processes here, thinks that the head runs.
    (cluster.server.folder / "ray" / "ray_current_cluster").unlink(missing_ok=True)
    cluster.head = await asyncio.to_thread(cluster.nodes.start_head, **cluster.stored)


async def is_managed(server: Server, dashboard: str, config: dict[str, Any], pool: str) -> bool:
    """Whether a change that is deployed comes, and a replica that is killed is replaced.

    The change is another pool, a model of it, and one replica more of `pool`; then one of those is killed.
    """
    changed, replicas = _with_more(config, pool)
    began = time.monotonic()
    try:
        await asyncio.to_thread(deploy, dashboard, changed, server.folder)
        await _until(lambda: len(server.replicas(pool)) == replicas and _runs(server, MANAGED), "the change")
        logger.info("a change came after %.1f s", time.monotonic() - began)
        victim, began = server.replicas(pool)[0], time.monotonic()
        victim.kill()
        await _until(lambda: _is_whole(server, dashboard, pool, replicas, victim), "the replica is replaced")
        logger.info("a replica was replaced after %.1f s", time.monotonic() - began)
    except AssertionError as error:
        logger.error("isn't managed: %s", error)
        return False
    return True


def _with_more(config: dict[str, Any], pool: str) -> tuple[dict[str, Any], int]:
    changed = copy.deepcopy(config)
    applications = {application["name"]: application for application in changed["applications"]}
    added = copy.deepcopy(applications[pool])
    added["name"] = MANAGED
    changed["applications"].append(added)
    [ingress] = [each for each in applications.values() if each["route_prefix"] == "/"]
    ingress["deployments"][0]["user_config"]["models"][MANAGED] = {"pools": [MANAGED]}
    applications[pool]["deployments"][0]["num_replicas"] += 1
    return changed, applications[pool]["deployments"][0]["num_replicas"]


def _runs(server: Server, pool: str) -> bool:
    """As the ingress sees it, by Serve's controller."""
    return server.states().get(pool) == "running"


def _is_whole(server: Server, dashboard: str, pool: str, replicas: int, without: psutil.Process) -> bool:
    """So many replicas run, as the system and Serve say, and that one isn't among them."""
    if without in (processes := server.replicas(pool)) or len(processes) != replicas:
        return False
    applications = httpx.get(f"{dashboard}/api/serve/applications/", timeout=5).json()["applications"]
    states = [each["state"] for each in applications[pool]["deployments"]["Pool"]["replicas"]]
    return states == ["RUNNING"] * replicas


async def _until(true: Callable[[], object], what: str, seconds: float = MANAGED_S) -> None:
    """In a thread, for the clients go on meanwhile."""
    await asyncio.to_thread(wait_until, true, what, seconds, 0.2)

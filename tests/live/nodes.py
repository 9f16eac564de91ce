"""A Ray cluster of several nodes on this machine: a head that only manages, and nodes that have what they are said to.

Ray takes a node's GPUs, kinds of GPU and labels as they are declared, so that placement is real and engines are not.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from app.flags import flags, free_port
from tests.live.server import ROOT, Server, has_variable
from tests.waiting import wait_until

BIN = Path(sys.executable).parent
NODE = "NODE_OF_TEST"  # the variable that says which node a process is of
HEAD = "head"
START_S = 120.0
RECONNECT_S = 600  # that what is left of a cluster waits for its head; Ray's own is 60


@dataclass
class Nodes:
    """A cluster. Its processes have `folder` as their RAY_TMPDIR, and `NODE` says of which node each is."""

    folder: Path
    port: int = field(default_factory=free_port)  # of HAProxy, and on another node than the head too
    gcs: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")
    dashboard_port: int = field(default_factory=free_port)
    started: "list[subprocess.Popen[bytes]]" = field(default_factory=list)
    server: Server = field(init=False)  # all of it, as clients see it

    def __post_init__(self) -> None:
        self.server = Server(self.start("true"), self.port, self.folder, self.folder / "output.txt")

    @property
    def dashboard(self) -> str:
        return f"http://127.0.0.1:{self.dashboard_port}"

    def start(self, *command: str, **variables: str) -> "subprocess.Popen[bytes]":
        with (self.folder / "output.txt").open("a") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**_environ(self.folder, self.port), **variables},
                start_new_session=True,
                cwd=self.folder,
            )
        self.started.append(process)
        return process

    def start_head(self, **variables: str) -> "subprocess.Popen[bytes]":
        """Returns once it answers."""
        process = self._ray(
            *("--head", f"--port={self.gcs.rpartition(':')[2]}", "--num-cpus=0", "--num-gpus=0"),
            *(f"--ray-client-server-port={free_port()}", f"--dashboard-port={self.dashboard_port}"),
            f"--temp-dir={self.folder}/ray",
            **{NODE: HEAD, **variables},
        )
        wait_until(self._answers, "the head's dashboard", START_S, pause_s=0.2)
        return process

    def start_node(
        self,
        name: str,
        cpus: float,
        gpus: int = 0,
        gpu_type: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> "subprocess.Popen[bytes]":
        """Another node. Returns once it has joined: many that start at once run out of Ray's patience.

        Raises:
            RuntimeError: it has ended instead.
        """
        kinds = {f"accelerator_type:{gpu_type}": 1} if gpu_type else {}
        before = self._joined()
        process = self._ray(
            *(f"--address={self.gcs}", f"--num-cpus={cpus:g}", f"--num-gpus={gpus}"),
            *(
                f"--resources={json.dumps(kinds)}",
                f"--labels={','.join(f'{k}={v}' for k, v in (labels or {}).items())}",
            ),
            **{NODE: name},
        )

        def joined() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"node {name} ended with status {process.returncode}\n{self.server.tail()}")
            return self._joined() > before

        wait_until(joined, f"node {name} joins", START_S, pause_s=0.2)
        return process

    def _joined(self) -> int:
        """How many nodes the head knows as alive, itself among them. What they print comes before, or after that."""
        return sum(node["raylet"].get("state") == "ALIVE" for node in self._nodes())

    def _nodes(self) -> list[dict[str, Any]]:
        answer = httpx.get(f"{self.dashboard}/nodes?view=summary", timeout=10).json()
        nodes: list[dict[str, Any]] = answer["data"]["summary"]
        return nodes

    def _ray(self, *options: str, **variables: str) -> "subprocess.Popen[bytes]":
        common = ("--block", "--node-ip-address=127.0.0.1", "--disable-usage-stats", "--min-worker-port=0")
        rest = ("--max-worker-port=0", "--object-store-memory=100000000")
        return self.start(str(BIN / "ray"), "start", *common, *rest, *options, **variables)

    def processes(self, node: str) -> list[psutil.Process]:
        """All that are of a node."""
        found = []
        for process in self.server.processes():
            with suppress(OSError):
                if has_variable(process, NODE, node):
                    found.append(process)
        return found

    def kill(self, node: str) -> None:
        """SIGKILL to all of them at once, as when a machine goes."""
        processes = self.processes(node)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=10)

    def wait_until_ready(self) -> None:
        """
        Raises:
            AssertionError: it isn't; with what each pool and each node is waiting for.
        """
        try:
            self.server.wait_until_ready()
        except (AssertionError, RuntimeError) as error:
            raise AssertionError("\n".join([str(error), *self._waiting()])) from None

    def _waiting(self) -> Iterator[str]:
        """What Serve says of each deployment's replicas, and Ray of each node."""
        try:
            details = httpx.get(f"{self.dashboard}/api/serve/applications/", timeout=10).json()
            nodes = self._nodes()
        except (httpx.HTTPError, ValueError, KeyError) as error:
            yield f"the head doesn't answer: {error!r}"
            return
        for name, application in details["applications"].items():
            for deployment in application["deployments"].values():
                replicas = [(each["state"], each.get("node_id")) for each in deployment["replicas"]]
                yield f"{name}: {application['status']}, {deployment['status']} {deployment['message']}: {replicas}"
        for node in nodes:
            raylet = node["raylet"]
            yield f"node {raylet['nodeId']}: {raylet['state']}, {raylet.get('resourcesTotal')}"

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.dashboard}/api/serve/applications/", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False


@contextmanager
def nodes() -> Iterator[Nodes]:
    """A cluster without nodes, nor a head, until they are started; nothing of it is left after the block."""
    # Short, for Unix sockets have to fit into 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="eh-", dir="/tmp"))
    cluster = Nodes(folder)
    try:
        yield cluster
    finally:
        cluster.server.kill_rest()
        for process in cluster.started:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _environ(folder: Path, port: int) -> dict[str, str]:
    return {
        **os.environ,
        **flags(folder),
        "PATH": os.pathsep.join([str(BIN), os.environ.get("PATH", os.defpath)]),
        "PYTHONPATH": str(ROOT),
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",  # more than one node
        "RAY_SERVE_WORKER_PROXY_HTTP_PORT": str(port),
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(RECONNECT_S),
    }

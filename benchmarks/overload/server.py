"""The server that is overloaded: `enginehouse serve` with one simulated pool."""

import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from app.flags import free_port
from benchmarks.gateway.processes import Launch, Running, running
from benchmarks.gateway.rows import Place, ray_environ
from benchmarks.overload.load import MODEL
from benchmarks.overload.mix import SLOTS, TOKEN_S

START_S = 180.0
# Of a queue this long chat waits for at most a few of those that are under way: each 30 ms one of them ends.
LIMITS = {"pools": {MODEL: {"max_concurrent": SLOTS, "max_queued": 2 * SLOTS}}, "timeouts": {"queue_s": 10}}
ROWS: dict[str, dict[str, Any]] = {"limits": LIMITS, "no limits": {}}


@dataclass(frozen=True, slots=True)
class Server:
    """A server that is ready."""

    port: int
    running: Running

    def ingress_rss_mb(self) -> float:
        """The memory of the ingress's processes."""
        processes = psutil.Process(self.running.pid).children(recursive=True)
        ingresses = [process for process in processes if "ServeReplica:ingress" in " ".join(process.cmdline())]
        return sum(float(process.memory_info().rss) for process in ingresses) / 1e6


def config(place: Place, admission: dict[str, Any], ingresses: int) -> Path:
    settings = {"models": {MODEL: {"pools": [MODEL]}}, "admission": admission}
    engine = {"token_interval_s": TOKEN_S, "max_num_seqs": SLOTS, "answer_tokens": 10_000}
    document = {
        "http_options": {"host": "127.0.0.1", "port": place.port},
        "logging_config": {"enable_access_log": False},
        "applications": [
            {
                "name": "ingress",
                "route_prefix": "/",
                "import_path": "app.main:build",
                "deployments": [{"name": "Ingress", "num_replicas": ingresses, "user_config": settings}],
            },
            {
                "name": MODEL,
                "route_prefix": None,
                "import_path": "deployments.pool:build",
                "args": {"engine": "simulated", "model": MODEL, "num_cpus": 0.1, "engine_args": engine},
                # Serve's own limits are out of the way.
                "deployments": [{"name": "Pool", "max_ongoing_requests": 100_000}],
            },
        ],
    }
    path = place.folder / "serve.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


@contextmanager
def serving(admission: dict[str, Any], ingresses: int) -> Iterator[Server]:
    """A server that admits requests by these settings, in so many ingress replicas, on loopback."""
    with tempfile.TemporaryDirectory(prefix="o-", dir="/tmp") as name:
        place = Place(free_port(), Path(name), upstream_port=0)
        path = config(place, admission, ingresses)
        command = [str(Path(sys.executable).with_name("enginehouse")), "serve", str(path), "--json"]
        environ = {**ray_environ(place), "ENGINEHOUSE_CACHE": str(place.folder / "cache")}
        with running(Launch(command, environ), place.folder / "log") as server:
            _await_ready(place.port, server)
            yield Server(place.port, server)


def _await_ready(port: int, server: Running) -> None:
    deadline_s = time.monotonic() + START_S
    while True:
        server.refuse_ended()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"it wasn't ready within {START_S:.0f} s: {error}") from error
        time.sleep(0.5)

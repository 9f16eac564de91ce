"""Waiting for other processes: what tests that start some have in common."""

import socket
import time
from collections.abc import Callable
from pathlib import Path


def wait_until(true: Callable[[], object], what: str, seconds: float = 60, pause_s: float = 0.02) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(pause_s)


def alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet collected doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port

"""Waiting for other processes: what tests that start some have in common."""

import asyncio
import inspect
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path


def wait_until(true: Callable[[], object], what: str, seconds: float = 60, pause_s: float = 0.02) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(pause_s)  # until the next look


async def until(true: Callable[[], object | Awaitable[object]], what: str = "it", seconds: float = 60) -> None:
    """As `wait_until`, of what happens in this process's event loop, or of what has to be asked in it."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not (await found if inspect.isawaitable(found := true()) else found):
        assert asyncio.get_running_loop().time() < deadline, f"{what}: not within {seconds} s"
        await asyncio.sleep(0.005)  # until the next look


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

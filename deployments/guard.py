"""Makes an engine's processes die with their replica, however it dies.

Engines run child processes that outlive a parent ended by SIGKILL and go on holding its GPUs: vLLM's EngineCore
does (vllm issue 55510). Ray ends only direct children, and only when its worker ends in good order.
"""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path


def contain() -> None:
    """Give this process a session of its own, and have whatever is left in it killed once this process is gone.

    Child processes that make sessions of their own escape; no engine's do.
    """
    if os.getpgrp() != os.getpid():
        os.setsid()
    # Returns once the guard watches: it detaches itself, so that nobody ends it as a child of this process.
    subprocess.run([sys.executable, "-S", "-E", __file__, str(os.getpid())], check=True, stdin=subprocess.DEVNULL)


def members(leader: int) -> list[int]:
    """Processes in the session or group that `leader` leads, without `leader` itself."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != leader:
            try:
                stat = (entry / "stat").read_bytes()  # a command's name may be no UTF-8
            except OSError:
                continue  # it ended while we looked
            # After the command's name in parentheses: state, parent, process group, session.
            state, _, group, session = stat.rpartition(b")")[2].split()[:4]
            if state != b"Z" and leader in (int(group), int(session)):
                found.append(int(entry.name))
    return found


def kill_members(leader: int, timeout_s: float = 10.0) -> None:
    """Kill them until none is left: one may start another while we look."""
    deadline = time.monotonic() + timeout_s
    while (pids := members(leader)) and time.monotonic() < deadline:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


def watch(leader: int) -> None:
    """Wait in the background until `leader` ends, then kill what it left."""
    process = os.pidfd_open(leader)
    if os.fork():
        os._exit(0)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    select.select([process], [], [])
    kill_members(leader)


if __name__ == "__main__":
    watch(int(sys.argv[1]))

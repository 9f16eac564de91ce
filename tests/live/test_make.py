"""`make serve` in a terminal, as a newcomer types it, and Ctrl-C."""

import os
import pty
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.live.server import Server, read_for
from tests.waiting import free_port, wait_until

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not shutil.which("make"), reason="make isn't installed")
def test_ctrl_c_leaves_nothing() -> None:
    folder = Path(tempfile.mkdtemp(prefix="eh-", dir="/tmp"))
    environ = {**os.environ, "RAY_TMPDIR": str(folder), "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    for name in ("MAKEFLAGS", "MAKEOVERRIDES", "ARGS"):  # of the make that runs the tests
        environ.pop(name, None)
    terminal, inside = pty.openpty()
    port = free_port()
    command = ["make", "serve", f"PORT={port}"]
    # Its own session with the terminal as its controlling one: Ctrl-C then goes to make and all it runs.
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *command], stdin=inside, stdout=inside, stderr=inside, env=environ, cwd=ROOT
    )
    os.close(inside)
    server = Server(process, port, folder, folder / "none")
    try:
        output = read_for(terminal, "Try:", 300)
        assert re.search(r"\[ *\d+ s\] pool smollm2: running", output)
        os.write(terminal, b"\x03")
        process.wait(120)
        wait_until(lambda: not server.processes(), "all processes end", 10)
    finally:
        server.kill_rest()
        os.close(terminal)
        shutil.rmtree(folder, ignore_errors=True)

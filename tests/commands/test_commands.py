"""The default config by each command that serves it, with its real model: from start to stop."""

import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
import pytest

from tests.live.server import Server, alone, read_for, serving
from tests.waiting import free_port, wait_until

ROOT = Path(__file__).parents[2]
MODEL = "smollm2-135m-instruct"


def ask(server: Server) -> httpx.Response:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=300)


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
    with alone(ROOT / "serve_config.yaml"):
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


def test_start_stop_start_on_the_same_port() -> None:
    """And nothing is left of the first: no process, no listener. As a shell's background job, or one of cron's, that
    ignores SIGINT."""
    config, port = ROOT / "serve_config.yaml", free_port()
    program = [str(Path(sys.executable).parent / "enginehouse"), "serve", str(config), "--port", str(port)]
    command = ["sh", "-c", "trap '' INT HUP; exec \"$@\"", "sh", *program]
    for number in (signal.SIGINT, signal.SIGTERM):
        with serving(config, port, command) as server:
            assert ask(server).status_code == 200
            invitation = re.search(r"^  (curl .*)$", server.output.read_text(), re.MULTILINE)
            assert invitation
            answer = subprocess.run(invitation[1], shell=True, capture_output=True, text=True, timeout=60)  # noqa: S602
            assert "The capital of France is Paris." in answer.stdout
            server.stop(number)
            assert server.process.returncode == 0
            wait_until(lambda: not server.processes(), "all processes end", 10)
            with socket.socket() as probe:
                assert probe.connect_ex(("127.0.0.1", port)) != 0


def test_plain_serve_run_works() -> None:
    """On a machine set up by `make serve`, from the repository's root, without our command."""
    command = [str(Path(sys.executable).parent / "serve"), "run", "--address", "local", "serve_config.yaml"]
    with serving(ROOT / "serve_config.yaml", port=8000, command=command) as server:
        assert ask(server).status_code == 200

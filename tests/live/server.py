"""A real server for tests: `enginehouse serve` with Ray's files and ports of its own, stopped by process id only."""

import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from app.runner import FAILED
from deployments import environments
from deployments.exclusive import exclusively
from deployments.settings import cache_dir
from tests.waiting import free_port, wait_until

ROOT = Path(__file__).parents[2]
START_S = 600.0  # several engines at once, on a busy machine
STOP_S = 120.0
LOG_LINES = 30
REQUEST_ID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
# One server with real engines at a time on a machine, whoever starts it: two are more than it has memory for.
LOCK = Path(tempfile.gettempdir()) / "enginehouse-tests-engines.lock"
TELL_S = 30.0
RUNNING: list["Server"] = []  # those that this process has started


def read_for(terminal: int, text: str, timeout_s: float) -> str:
    """What a terminal prints until `text` appears in it."""
    output, deadline = "", time.monotonic() + timeout_s
    while text not in output:
        if time.monotonic() > deadline or not select.select([terminal], [], [], timeout_s)[0]:
            raise TimeoutError(f"no {text!r} within {timeout_s:.0f} s in:\n{output}")
        try:
            output += os.read(terminal, 4096).decode(errors="replace")
        except OSError as error:  # whoever wrote to it has ended
            raise EOFError(f"no {text!r} in all of it:\n{output}") from error
    return output


def has_variable(process: psutil.Process, name: str, value: str) -> bool:
    """Whether it was started with this in its environment. psutil's own stops at a gap, which Ray's titles leave."""
    return f"{name}={value}".encode() in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")


@dataclass
class Server:
    """A running `enginehouse serve`."""

    process: "subprocess.Popen[Any]"
    port: int
    folder: Path  # Ray's files
    output: Path
    is_real: bool = False  # it has engines that have a model in memory
    seen: dict[int, float] = field(default_factory=dict)  # every process there was: id to start time

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def processes(self) -> list[psutil.Process]:
        """What this server is made of now: its children, and what those let go of but still works in its folder."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid != self.process.pid and self._is_ours(process):
                    found.append(process)
                    self.seen[process.pid] = process.create_time()
            except (psutil.Error, OSError):
                continue
        return found

    def _is_ours(self, process: psutil.Process) -> bool:
        return process.status() != psutil.STATUS_ZOMBIE and has_variable(process, "RAY_TMPDIR", str(self.folder))

    def replicas(self, application: str) -> list[psutil.Process]:
        return self._titled(f"ServeReplica:{application}:")

    def controllers(self) -> list[psutil.Process]:
        """Serve's: one, and while it is replaced two or none."""
        return self._titled("ray::ServeController")

    def kinds(self) -> Counter[str]:
        """How many processes there are of each kind that Serve, an engine or we start; Ray's own come and go."""
        kinds = re.compile(r"ServeReplica:\w+|ServeController|HAProxyManager|ProxyActor|bin/haproxy|EngineCore")
        found = (kinds.search(command) for _, command in self._commands())
        return Counter(match.group() for match in found if match)

    def _titled(self, title: str) -> list[psutil.Process]:
        return [process for process, command in self._commands() if title in command]

    def _commands(self) -> Iterator[tuple[psutil.Process, str]]:
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):  # it has ended since
                yield process, " ".join(process.cmdline())

    def gcs_address(self) -> str:
        matches = (re.search(r"--gcs-address=(\S+)", command) for _, command in self._commands())
        return next(match.group(1) for match in matches if match)

    def dashboard(self) -> str:
        """Where `serve deploy` goes."""
        found = (re.search(r"dashboard\.py --host=(\S+) --port=(\d+)", command) for _, command in self._commands())
        return next(f"http://{match[1]}:{match[2]}" for match in found if match)

    def listening(self) -> list[tuple[str, str]]:
        """Each process's name, and an address that it listens at."""
        found = []
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):  # it has ended since
                sockets = [each for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]
                found += [(process.name(), each.laddr.ip) for each in sockets]
        return found

    def states(self) -> dict[str, str]:
        """Each pool's, as the ingress sees it; nothing while there is no ingress."""
        try:
            states: dict[str, str] = httpx.get(f"{self.url}/ready", timeout=5).json()["pools"]
        except (httpx.HTTPError, ValueError, KeyError):
            return {}
        return states

    def is_ready(self) -> bool:
        """All pools that the config names are up."""
        states = self.states()
        return bool(states) and all(state == "running" for state in states.values())

    def wait_until_ready(self) -> None:
        """
        Raises:
            RuntimeError: it has ended, or a pool of it can't be deployed; with what the log says.
        """

        def ready_or_dead() -> bool:
            states = self.states()
            if failed := [name for name, state in states.items() if state in FAILED]:
                raise RuntimeError(f"pool {', '.join(failed)}: {states}\n{self.tail()}")
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended:\n{self.tail()}")
            return bool(states) and all(state == "running" for state in states.values())

        try:
            wait_until(ready_or_dead, "all pools up", START_S, pause_s=0.3)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.states() or 'no ingress answers'}\n{self.tail()}") from None

    @property
    def log(self) -> Path:
        """What Serve and all its processes print."""
        own = cache_dir() / "logs" / f"serve-{self.port}.log"  # of `enginehouse serve`
        return own if own.exists() else self.output

    def tail(self, lines: int = LOG_LINES) -> str:
        """The log's last lines, and the ids of the requests in them."""
        last = self.log.read_text(errors="replace").splitlines()[-lines:] if self.log.exists() else []
        ids = dict.fromkeys(match[0] for line in last for match in REQUEST_ID.finditer(line))
        told = [f"requests in these lines: {', '.join(ids)}"] if ids else []
        return "\n".join([f"the last lines of {self.log}:", *(f"    {line}" for line in last), *told])

    def stop(self, number: int = signal.SIGINT) -> None:
        """Stop it as an operator would, and kill what is left, so that no test leaves a process to the next."""
        if self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(STOP_S)

    def kill_rest(self) -> list[str]:
        rest = self.processes()
        for process in rest:
            with suppress(psutil.NoSuchProcess):  # it has ended since
                process.kill()
        psutil.wait_procs(rest, timeout=10)
        return [str(process) for process in rest]


@contextmanager
def serving_document(document: Mapping[str, Any], folder: Path) -> Iterator[Server]:
    """Serve a configuration, which may name what is in the tests."""
    path = folder / "served.yaml"
    path.write_text(yaml.safe_dump(dict(document)))
    with serving(path, document["http_options"]["port"], environ={"PYTHONPATH": str(ROOT)}) as server:
        yield server


def deploy(dashboard: str, document: Mapping[str, Any], folder: Path) -> None:
    """`serve deploy`, as an operator changes a running server."""
    file = folder / "deployed.yaml"
    file.write_text(yaml.safe_dump(dict(document)))
    command = [str(Path(sys.executable).parent / "serve"), "deploy", "--address", dashboard, str(file)]
    environ = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, env=environ)
    assert done.returncode == 0, done.stderr


def deploy_live(dashboard: str, document: Mapping[str, Any]) -> None:
    """The same by the request that `serve deploy` makes, without waiting for a Python to start."""
    answer = httpx.put(f"{dashboard}/api/serve/applications/", json=document, timeout=60)
    assert answer.status_code == 200, answer.text


def real_engines(config: Path) -> list[str]:
    """The engines of a configuration that have a model in memory."""
    applications = yaml.safe_load(config.read_text())["applications"]
    engines = {application.get("args", {}).get("engine") for application in applications}
    return sorted(engines & {"transformers", *environments.ENGINES})


@contextmanager
def alone(config: Path) -> Iterator[None]:
    """Wait while another server with real engines runs on this machine, if this is to be one.

    Raises:
        RuntimeError: it is one of this process.
    """
    if not real_engines(config):
        yield
        return
    if others := [server.url for server in RUNNING if server.is_real]:
        raise RuntimeError(f"{others[0]}, of this process, has real engines too; stop it before another")

    def tell() -> None:
        print(f"waiting for another server with real engines, which holds {LOCK}", file=sys.stderr, flush=True)

    with exclusively(LOCK, tell, TELL_S):
        yield


@contextmanager
def serving(
    config: Path,
    port: int | None = None,
    command: list[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Serve `config` until the block ends, by `command` where it isn't to be `enginehouse serve`."""
    with alone(config), _serving(config, port or free_port(), command, environ or {}) as server:
        yield server


@contextmanager
def _serving(config: Path, port: int, command: list[str] | None, environ: Mapping[str, str]) -> Iterator[Server]:
    # Short, for Unix sockets have to fit into 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="eh-", dir="/tmp"))
    output = folder / "output.txt"
    command = command or [str(Path(sys.executable).parent / "enginehouse"), "serve", str(config), "--port", str(port)]
    ray = {"RAY_TMPDIR": str(folder), "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    with output.open("w") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=file,
            text=True,
            env={**os.environ, **ray, **environ},
            start_new_session=True,
        )
    server = Server(process, port, folder, output, bool(real_engines(config)))
    RUNNING.append(server)
    try:
        server.wait_until_ready()
        yield server
    finally:
        RUNNING.remove(server)
        server.stop()
        server.kill_rest()
        shutil.rmtree(folder, ignore_errors=True)

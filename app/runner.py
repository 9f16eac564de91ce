"""`enginehouse serve`: prepares what a config needs, runs `serve run`, and shows how far it is."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import FrameType
from typing import IO, Any

import yaml

from app.access.listening import unprotected
from app.check import Checked
from app.flags import flags
from deployments import environment_build, environments, models, quantization, registry
from deployments.child import signalled_with_parent
from deployments.quantization import QuantizationError
from deployments.settings import cache_dir

Report = Callable[[str], None]


POLL_S = 0.5
STOP_S = 90.0  # for requests in flight to end and replicas to stop, before what is left is killed
LOG_TAIL = 25
FAILED = frozenset({"deploy_failed", "unhealthy"})  # of a pool: not worth waiting for


class RunError(RuntimeError):
    """It can't be served. The message says why."""


@dataclass(frozen=True, slots=True)
class Where:
    """Where the ingress listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        host = f"[{self.reachable}]" if ":" in self.reachable else self.reachable
        return f"http://{host}:{self.port}"

    @property
    def reachable(self) -> str:
        """The host, as a client on this machine names it."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)


def run(
    config: Path,
    checked: Checked,
    *,
    host: str | None,
    port: int | None,
    address: str,
    report: Report,
    ready: Callable[[str, list[str]], None],
) -> int:
    """Serve until a signal comes; call `ready` with the URL and the models once pools are up. The exit status.

    Raises:
        RunError: anybody could use the server, the port is taken, or Serve doesn't start.
        InstallError: an engine's environment can't be built.
        ModelNotFoundError: a model can't be had.
    """
    assert checked.file is not None
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As a shell's background job, cron or CI has it: what takes minutes before Serve runs would go on.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    options = checked.file.http_options
    where = Where(host or options.host, port or options.port)
    _refuse_unprotected(where, checked)
    _refuse_taken_port(where)
    prepare(checked, report)
    log = cache_dir() / "logs" / f"serve-{where.port}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        _config_file(config.name, checked.document, where) as file,
        log.open("w") as output,
        _signals() as stop,
        tempfile.TemporaryDirectory(prefix="eh-") as own,
        _serve_run(file, address, Path(own), output, stop) as child,
    ):
        report(f"starting Ray Serve; its log: {log}")
        _wait_until_ready(child, where, log, stop, report)
        if not stop and child.poll() is None:
            ready(where.url, sorted(checked.ingress.models) if checked.ingress else [])
        while not stop and child.poll() is None:
            time.sleep(POLL_S)
        if not stop:
            raise RunError(f"Ray Serve ended by itself with status {child.returncode}.\n{_tail(log)}")
        report("stopping")
    return 0


def prepare(checked: Checked, report: Report) -> None:
    """Build the engine environments and fetch the models that the pools need and that aren't there.

    Raises:
        RunError: an engine can't run its model here.
    """
    for engine in sorted({pool.engine for pool in checked.pools.values()} & environments.ENGINES.keys()):
        if not environments.is_here(engine):  # as in an image that was made for it
            environment_build.install(engine, report)
    for name, pool in checked.pools.items():
        if registry.ENGINES[pool.engine].has_files:
            folder = models.resolve(pool.model, pool.revision, report)
            try:
                quantization.check(pool.engine, folder, pool.engine_args.get("quantization"))
            except QuantizationError as error:
                raise RunError(f"Pool {name}: {error}") from None


def _refuse_unprotected(where: Where, checked: Checked) -> None:
    """The config was checked for its own host; this is for the one that was asked for instead."""
    message = unprotected(where.host, checked.ingress.access) if checked.ingress else None
    if message is not None:
        raise RunError(message)


def _refuse_taken_port(where: Where) -> None:
    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((where.host, where.port))
        except OSError as error:
            message = f"Cannot listen on {where.host}:{where.port}: {error.strerror}. Choose another with --port."
            raise RunError(message) from None


@contextmanager
def _config_file(name: str, document: dict[str, Any], where: Where) -> Iterator[Path]:
    """The config that was checked, with the address that was asked for, as a file for `serve run`."""
    options = {**document.get("http_options", {}), "host": where.host, "port": where.port}
    with tempfile.TemporaryDirectory(prefix="enginehouse-") as folder:
        path = Path(folder) / name
        path.write_text(yaml.safe_dump({**document, "http_options": options}, sort_keys=False))
        yield path


@contextmanager
def _serve_run(
    config: Path, address: str, own: Path, output: IO[str], stop: list[int]
) -> Iterator["subprocess.Popen[bytes]"]:
    """`serve run` in a session of its own, so that a Ctrl-C reaches it once, from here. Ended at the end."""
    bin_folder = Path(sys.executable).parent
    # Replicas find `engine-python` on PATH, also where this environment isn't activated.
    environ = {**os.environ, "PATH": os.pathsep.join([str(bin_folder), os.environ.get("PATH", os.defpath)])}
    if address == "local":
        # Ray's own switch for machines that are no cluster: its ports open on loopback, not on every interface.
        environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        environ = flags(own) | environ
    command = [str(bin_folder / "serve"), "run", "--address", address, "--app-dir", os.getcwd(), str(config)]
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environ,
        start_new_session=True,
        preexec_fn=_before_exec,
    )
    try:
        yield child
    finally:
        _end(child, stop)


def _before_exec() -> None:
    """In the child: have SIGINT work, and come when this process dies without having been able to send it."""
    # A shell's background job ignores SIGINT, and Python would inherit that.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signalled_with_parent(signal.SIGINT)


def _end(child: "subprocess.Popen[bytes]", stop: list[int]) -> None:
    """Let Serve shut down, then kill what is left of its session: at once, if a second signal comes meanwhile."""
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
    deadline = time.monotonic() + STOP_S
    while child.poll() is None and len(stop) < 2 and time.monotonic() < deadline:
        time.sleep(POLL_S)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The signals to stop, as they come. None of them is an exception, which might end the ending half-way."""
    stop: list[int] = []

    def remember(number: int, _: FrameType | None) -> None:
        stop.append(number)

    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # which `nohup` sees to: it outlives its terminal
        wanted.append(signal.SIGHUP)
    before = {number: signal.signal(number, remember) for number in wanted}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_until_ready(
    child: "subprocess.Popen[bytes]", where: Where, log: Path, stop: list[int], report: Report
) -> None:
    """Report each change of a pool's state until all have come up or failed for good."""
    began, seen = time.monotonic(), dict[str, str]()
    while not stop and child.poll() is None:
        pools = pool_states(where)
        for name, state in (pools or {}).items():
            if seen.get(name) != state:
                seen[name] = state
                report(f"[{time.monotonic() - began:3.0f} s] pool {name}: {state}")
                if state in FAILED:
                    report(f"{reason(log)}{_tail(log)}")
        if pools is not None and set(pools.values()) <= {"running", *FAILED}:
            if pools and "running" not in pools.values():
                raise RunError(f"No pool came up. Serve's whole log: {log}")
            return
        time.sleep(POLL_S)


def pool_states(where: Where) -> dict[str, str] | None:
    """Each pool's state, by the ingress's `/ready`; None while the ingress isn't up."""
    connection = HTTPConnection(where.reachable, where.port, timeout=5)  # past any proxy that the environment names
    try:
        connection.request("GET", "/ready")
        states: dict[str, str] = json.loads(connection.getresponse().read())["pools"]
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return None  # or Serve's own answer, before the ingress is there
    finally:
        connection.close()
    return states


# An exception's own line, behind what Ray puts before the lines of other processes.
_EXCEPTION = re.compile(r"^(?:\x1b\[\d+m)?(?:\(\w[^)]*\)(?:\x1b\[0m)? +)?((?:\w+\.)*\w+(?:Error|Exception): .+)$")


def reason(log: Path) -> str:
    """The log's last exception, as a line; empty if there is none."""
    found = [match[1] for line in _lines(log) if (match := _EXCEPTION.match(line))]
    return f"{found[-1]}\n" if found else ""


def _lines(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()


def _tail(log: Path) -> str:
    lines = _lines(log)[-LOG_TAIL:]
    return "\n".join(["The log's last lines:", *(f"    {line}" for line in lines), f"The whole of it: {log}"])

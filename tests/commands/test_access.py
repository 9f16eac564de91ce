"""Keys on a real server, by HAProxy and by Serve's own proxy: who is let in, and what headers may be."""

import contextlib
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from app.access.keys_file import add_key
from app.access.secret import digest, new_secret
from app.access.settings import KeyRecord
from tests.live.server import Server, serving
from tests.waiting import free_port, wait_until

ROOT = Path(__file__).parents[2]
SECRET = new_secret()
BODY = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


def write(folder: Path, port: int, host: str, access: dict[str, Any]) -> Path:
    settings = {"models": {"m": {"pools": ["pool"]}}, "access": access}
    ingress = {
        "name": "ingress",
        "route_prefix": "/",
        "import_path": "app.main:build",
        "deployments": [{"name": "Ingress", "user_config": settings}],
    }
    pool = {
        "name": "pool",
        "route_prefix": None,
        "import_path": "deployments.pool:build",
        "args": {"engine": "simulated", "model": "m", "num_cpus": 0.1, "engine_args": {"time_factor": 0}},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({"http_options": {"host": host, "port": port}, "applications": [ingress, pool]}))
    return path


def ask(server: Server, secret: str | None = None) -> httpx.Response:
    shown = {"authorization": f"Bearer {secret}"} if secret else {}
    return httpx.post(f"{server.url}/v1/chat/completions", json=BODY, headers=shown, timeout=60)


def code(response: httpx.Response) -> tuple[int, Any]:
    return response.status_code, response.json()["error"]["code"]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.yaml"
    add_key(path, KeyRecord(name="one", requests_per_minute=1000, sha256=digest(SECRET.encode()).hex()))
    return path


# By HAProxy, as `enginehouse serve` has it


@pytest.fixture(scope="module")
def locked(keys: Path) -> Iterator[Server]:
    port = free_port()
    config = write(keys.parent, port, "0.0.0.0", {"keys_file": str(keys)})
    with serving(config, port, environ={"PYTHONPATH": str(ROOT)}) as server:
        yield server


def test_a_key_is_needed(locked: Server) -> None:
    assert code(ask(locked)) == (401, "missing_api_key")
    assert code(ask(locked, "eh-nonsense")) == (401, "invalid_api_key")
    response = ask(locked, SECRET)
    assert (response.status_code, response.headers["x-ratelimit-limit-requests"]) == (200, "1000")


def test_keys_change_while_it_runs(locked: Server, keys: Path) -> None:
    secret = new_secret()
    assert code(ask(locked, secret)) == (401, "invalid_api_key")
    add_key(keys, KeyRecord(name="two", sha256=digest(secret.encode()).hex()))
    wait_until(lambda: ask(locked, secret).status_code == 200, "the new key is let in", 20, pause_s=0.2)


@pytest.mark.parametrize("size", [14_000, 15_500, 20_000, 100_000, 300_000])
def test_headers_that_are_too_large_are_the_clients_error(locked: Server, size: int) -> None:
    assert raw_status(locked.port, size) == (200 if size < 15_000 else 400)


# By Serve's own proxy, as plain `serve run` has it


@pytest.fixture(scope="module")
def unchecked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Its config is one that `enginehouse` refuses."""
    port = free_port()
    config = write(tmp_path_factory.mktemp("open"), port, "0.0.0.0", {})
    command = [str(Path(sys.executable).parent / "serve"), "run", "--app-dir", str(ROOT), str(config)]
    with serving(config, port, command, {"PYTHONPATH": str(ROOT)}) as server:
        yield server


def test_without_keys_nobody_is_let_in(unchecked: Server) -> None:
    response = ask(unchecked, SECRET)
    assert code(response) == (401, "no_api_keys")
    assert "listens on '0.0.0.0', which isn't loopback" in response.json()["error"]["message"]
    assert httpx.get(f"{unchecked.url}/health").status_code == 200


@pytest.mark.parametrize("size", [20_000, 100_000, 300_000])
def test_headers_have_a_limit_without_haproxy_too(unchecked: Server, size: int) -> None:
    assert raw_status(unchecked.port, size) == (200 if size < 64_000 else 431)


def raw_status(port: int, size: int) -> int:
    """Of a request to `/health` with so many bytes of headers, as no client library sends it."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.settimeout(30)
        with contextlib.suppress(OSError):  # it answers and closes before all is sent
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nx-large: " + b"y" * size + b"\r\n\r\n")
        return int(connection.recv(1024).split()[1])

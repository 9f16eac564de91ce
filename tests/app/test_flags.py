import os
import socket
from pathlib import Path

import pytest

from app import flags as module
from app.flags import FLAGS, flags

NODE_ID = "f" * 56  # Serve puts one more folder, of this length, above each file
LONGEST_SOCKET = 107  # Linux: bytes of a Unix socket's path
HAPROXY_SUFFIX = ".1234567.tmp"  # under which HAProxy binds a socket first


def test_haproxy_s_program_is_ours_and_its_files_are_in_the_folder(tmp_path: Path) -> None:
    found = flags(Path("/tmp/eh-12345678"))
    assert found.items() >= FLAGS.items()
    assert found["RAY_SERVE_ENABLE_HA_PROXY"] == "1"
    program = Path(found["RAY_SERVE_HAPROXY_BINARY_PATH"])
    assert program.name == "enginehouse-haproxy" and os.access(program, os.X_OK)
    paths = [
        Path(value)
        for name, value in found.items()
        if name.endswith(("_PATH", "_LOC", "_FILE")) and name[4:9] == "SERVE"
    ]
    own = [path for path in paths if path != program]
    assert len(own) == 4 and all(path.parent == Path("/tmp/eh-12345678") for path in own)
    longest = max(len(str(path.parent / NODE_ID / path.name)) for path in own)
    assert longest + len(HAPROXY_SUFFIX) <= LONGEST_SOCKET


def test_the_port_of_serve_s_own_proxy_is_free_and_no_ephemeral_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.sample", lambda ports, count: [20_001, 20_002])
    with socket.create_server(("127.0.0.1", 20_001)):
        assert flags(Path("/tmp"))["RAY_SERVE_FALLBACK_PROXY_HTTP_PORT"] == "20002"


def test_where_haproxy_is_missing_serve_s_own_proxy_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert flags(Path("/tmp")) == FLAGS


def test_every_variable_is_one_that_ray_or_serve_reads() -> None:
    ray = Path(str(__import__("ray").__file__)).parent
    readers = (
        "serve/_private/constants.py",
        "dashboard/modules/event/event_consts.py",
        "_private/accelerators/accelerator.py",
    )
    text = "".join((ray / reader).read_text() for reader in readers)
    assert [name for name in flags(Path("/tmp")) if name not in text] == ["RAY_worker_niceness"]  # which C++ reads

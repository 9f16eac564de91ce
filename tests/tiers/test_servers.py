"""How tests' servers keep out of each other's way, and what is shown of one where a test fails."""

import threading
from pathlib import Path

import pytest
import yaml

from tests.live import server as module
from tests.live.server import Server, alone, real_engines
from tests.waiting import wait_until

ID = "4ebc7d31-0f0c-4c08-9b3a-0d6f0b1c2d3e"


def config(folder: Path, *engines: str) -> Path:
    pools = [{"name": engine, "args": {"engine": engine}} for engine in engines]
    path = folder / f"{'-'.join(engines)}.yaml"
    path.write_text(yaml.safe_dump({"applications": [{"name": "ingress"}, *pools]}))
    return path


@pytest.fixture(autouse=True)
def own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(module, "RUNNING", [])


def test_engines_that_have_a_model_in_memory(tmp_path: Path) -> None:
    assert real_engines(config(tmp_path, "simulated", "vllm", "tgi", "transformers")) == ["transformers", "vllm"]


def test_one_server_with_real_engines_waits_for_another(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, entered = config(tmp_path, "vllm"), threading.Event()

    def other() -> None:
        with alone(path):
            entered.set()

    with alone(path), alone(config(tmp_path, "simulated")):  # which waits for nobody
        thread = threading.Thread(target=other)
        thread.start()
        wait_until(lambda: "waiting for another server with real engines" in capfd.readouterr().err, "it says so")
        assert not entered.is_set()
    thread.join(60)
    assert entered.is_set()


def test_two_of_one_process_are_refused(tmp_path: Path, running: Server) -> None:
    running.is_real = True
    module.RUNNING.append(running)
    told = "http://127.0.0.1:1, of this process, has real engines too"
    with pytest.raises(RuntimeError, match=told), alone(config(tmp_path, "sglang")):
        pass


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("ENGINEHOUSE_CACHE", str(tmp_path / "cache"))
    return Server(None, 1, tmp_path, tmp_path / "output.txt")  # type: ignore[arg-type]  # it runs in name only


def test_the_log_s_last_lines_and_the_requests_in_them(running: Server) -> None:
    assert running.tail() == f"the last lines of {running.output}:"
    running.output.write_text(f"an old line of {ID[:-1]}0\nnew\n{ID} -- POST 200\n{ID} -- again\n")
    assert running.tail(3) == "\n".join(
        [
            f"the last lines of {running.output}:",
            "    new",
            f"    {ID} -- POST 200",
            f"    {ID} -- again",
            f"requests in these lines: {ID}",
        ]
    )
    own = running.folder / "cache" / "logs" / "serve-1.log"
    own.parent.mkdir(parents=True)
    own.write_text("of enginehouse serve\n")
    assert "    of enginehouse serve" in running.tail()

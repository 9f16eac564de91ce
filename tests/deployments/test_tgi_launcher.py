"""A TGI server that a replica starts itself, by a stand-in for TGI's launcher."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from deployments.engine import EngineDeadError, PoolModel
from deployments.tgi import LOADING_S, TgiArgs, TgiEngine
from deployments.tgi_launcher import COMMAND, TgiLaunch
from tests.deployments.test_tgi import whole
from tests.waiting import alive, until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The launcher on PATH; and the file in which it tells its process ids and flags."""
    command = tmp_path / "bin" / COMMAND
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.fakes.tgi_launcher "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("LAUNCHED", str(tmp_path / "launched"))
    return tmp_path / "launched"


def made(model: str = "org/model", revision: str | None = None, launch: Any = (), **args: Any) -> TgiEngine:
    fast = {"health_interval_s": 0.05, "start_timeout_s": 60, "launch": dict(launch)}
    return TgiEngine(PoolModel(model, "served", revision), TgiArgs.model_validate(fast | args))


@asynccontextmanager
async def started(engine: TgiEngine) -> AsyncGenerator[TgiEngine]:
    try:
        await engine.start()
        yield engine
    finally:
        await engine.stop()


def words(launched: Path) -> str:
    return launched.read_text()


def pids(launched: Path) -> list[int]:
    return [int(pid) for pid in words(launched).split()[:2]]


async def gone(launched: Path) -> None:
    await until(lambda: not any(map(alive, pids(launched))), "the end of its processes")


async def test_a_server_of_its_own(launched: Path) -> None:
    flags = {"max_total_tokens": 512, "lora_adapters": ["poems=/data/poems"], "dtype": "bfloat16"}
    async with started(made(revision="v1", launch=flags, adapter_id="poems")) as engine:
        assert (await whole(engine))["usage"]["completion_tokens"] == 8
        assert engine.capabilities().context_length == 512
        await engine.health()
        told = words(launched)
        for flag in ("--model-id org/model", "--revision v1", "--hostname 127.0.0.1", "--dtype bfloat16"):
            assert flag in told
        assert "--lora-adapters poems=/data/poems" in told
    await gone(launched)
    await engine.stop()  # again


async def test_several_on_one_node(launched: Path) -> None:
    async with started(made()) as one, started(made()) as other:
        assert one._upstream.servers[0].url != other._upstream.servers[0].url
        for engine in (one, other):
            await whole(engine)


async def test_without_its_process_the_engine_is_dead(launched: Path) -> None:
    async with started(made()) as engine:
        os.kill(pids(launched)[0], signal.SIGKILL)
        async with asyncio.timeout(60):
            with pytest.raises(EngineDeadError, match="ended by signal 9"):
                while True:
                    await engine.health()
                    await asyncio.sleep(0.01)  # until the next look
    await gone(launched)  # its shard, too


async def test_a_server_that_no_longer_answers_is_dead(launched: Path) -> None:
    async with started(made(connect_timeout_s=0.2)) as engine:
        os.kill(pids(launched)[0], signal.SIGSTOP)
        async with asyncio.timeout(60):
            with pytest.raises(EngineDeadError, match="doesn't answer"):
                while True:
                    await engine.health()
                    await asyncio.sleep(0.01)  # until the next look
        os.kill(pids(launched)[0], signal.SIGCONT)


async def test_a_launcher_that_fails_ends_the_start_at_once(launched: Path) -> None:
    with pytest.raises(EngineDeadError, match=f"{COMMAND} ended with status 1"):
        async with started(made("org/fails")):
            pass


async def test_a_start_that_takes_too_long_leaves_nothing(launched: Path) -> None:
    engine = made("org/hangs", start_timeout_s=5)
    assert engine._launcher is not None
    with pytest.raises(TimeoutError, match="no remote server was healthy within 5 s"):
        await engine.start()
    assert all(map(alive, pids(launched)))
    await engine._launcher.stop(patience_s=0.2)
    await engine.stop()
    await gone(launched)


async def test_without_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ValueError, match=f"needs {COMMAND}, which is not on this node's PATH"):
        async with started(made()):
            pass


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"urls": ["http://a"], "launch": {}},
        {"launch": {"num_shards": 2}},
        {"launch": {"port": 8080}},
        {"launch": {"quantize": "q4"}},
    ],
    ids=str,
)
def test_bad_args_are_refused(args: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TgiArgs.model_validate(args)


def test_flags() -> None:
    assert TgiLaunch().flags() == []
    launch = TgiLaunch(num_shard=2, waiting_served_ratio=0.3, lora_adapters=("a=/a", "org/b"))
    assert launch.flags() == ["--num-shard", "2", "--waiting-served-ratio", "0.3", "--lora-adapters", "a=/a,org/b"]


def test_a_model_has_time_to_load() -> None:
    said = TgiArgs.model_validate({"launch": {}})
    assert TgiEngine(PoolModel("m", "m"), said)._upstream._args.start_timeout_s == LOADING_S

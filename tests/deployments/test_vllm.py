"""What of the vLLM adapter runs without vLLM; the rest is tested on a real one."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from deployments.engine import Adapter, EngineRequest, PoolModel
from deployments.errors import ApiError
from deployments.vllm import VllmArgs, VllmEngine
from deployments.vllm_adapters import VllmAdapters
from tests.lora_files import write_adapter


def test_args_pass_through_as_they_are() -> None:
    args = VllmArgs.model_validate({"max_model_len": 1024, "enforce_eager": True, "hf_overrides": {"a": [1]}})
    assert args.model_extra == {"max_model_len": 1024, "enforce_eager": True, "hf_overrides": {"a": [1]}}
    engine = VllmEngine(PoolModel("m", "m"), args)
    assert engine._args == args.model_extra
    assert VllmEngine(PoolModel("m", "m"), VllmArgs())._args == {}


@pytest.mark.parametrize("name", ["model", "served_model_name", "revision"])
def test_engine_args_leave_the_model_to_the_pool(name: str) -> None:
    with pytest.raises(ValidationError, match=f"'{name}' is set by the pool's own keys"):
        VllmArgs.model_validate({name: "x", "max_model_len": 128})


@pytest.mark.parametrize(
    ("args", "rank"),
    [
        ({}, None),
        ({"max_lora_rank": 8}, None),
        ({"enable_lora": True}, 16),
        ({"enable_lora": True, "max_lora_rank": 64}, 64),
    ],
)
def test_the_highest_rank_of_an_adapter(args: dict[str, Any], rank: int | None) -> None:
    can = VllmEngine(PoolModel("m", "m"), VllmArgs.model_validate(args)).capabilities()
    assert (can.lora, can.max_lora_rank) == (rank is not None, rank)


class FakeRegister:
    """vLLM's register of adapters."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.answer: Any = "Success"

    async def load_lora_adapter(self, request: Any) -> Any:
        self.asked.append((request.lora_name, request.lora_path))
        return self.answer

    async def unload_lora_adapter(self, request: Any) -> Any:
        self.asked.append((request.lora_name, None))
        return self.answer


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> FakeRegister:
    names = ("LoadLoRAAdapterRequest", "UnloadLoRAAdapterRequest")
    protocol: Any = SimpleNamespace(**dict.fromkeys(names, SimpleNamespace))
    monkeypatch.setitem(sys.modules, "vllm.entrypoints.serve.lora.protocol", protocol)
    return FakeRegister()


def engine_with(register: FakeRegister) -> VllmEngine:
    engine = VllmEngine(PoolModel("m", "m"), VllmArgs())
    engine._adapters = VllmAdapters(register)
    return engine


async def test_an_adapter_loaded_anew_finds_nothing_in_the_prefix_cache(register: FakeRegister) -> None:
    """vLLM's cache knows an adapter by its name and path: the weights may have changed since."""
    engine, folder = engine_with(register), Path("/adapters/a")
    for _ in range(3):
        await engine.load_adapter(Adapter("x", folder))
        await engine.unload_adapter("x")
    await engine.load_adapter(Adapter("y", folder))
    paths = [path for _, path in register.asked if path is not None]
    assert paths == ["/adapters/a", "/adapters/a/.", "/adapters/a/./.", "/adapters/a"]
    assert {Path(path) for path in paths} == {folder}
    assert register.asked[1] == ("x", None)


async def test_an_adapter_whose_files_are_gone_never_reaches_vllm(register: FakeRegister, tmp_path: Path) -> None:
    """Its core would die of it."""
    engine, folder = engine_with(register), write_adapter(tmp_path / "a", {})
    await engine.load_adapter(Adapter("x", folder))
    engine._adapters.refuse_gone("x")
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(ApiError, match="^The files of the adapter 'x' are gone from the server;") as caught:
        await engine.handle(EngineRequest("completions", b"{}", "1", adapter="x"))
    assert (caught.value.status, caught.value.param, caught.value.code) == (404, "model", "model_not_found")


async def test_an_adapter_that_vllm_refuses(register: FakeRegister) -> None:
    engine = engine_with(register)
    await engine.load_adapter(Adapter("w", Path("/w")))
    register.answer = SimpleNamespace(error=SimpleNamespace(message="No room."))
    with pytest.raises(ApiError, match="^vLLM refuses the adapter: No room.$") as caught:
        await engine.load_adapter(Adapter("x", Path("/a")))
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, "lora_path", "invalid_adapter")
    with pytest.raises(ApiError):
        await engine.unload_adapter("w")
    register.answer = "Success"
    await engine.load_adapter(Adapter("x", Path("/a")))
    assert register.asked[-1] == ("x", "/a")  # what was refused left nothing in the cache

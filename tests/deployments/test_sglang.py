"""What of the SGLang adapter and its CPU platform runs without SGLang; the rest is tested on a real one."""

import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from deployments import sglang, sglang_cpu, torch_store
from deployments.engine import EngineDeadError, PoolModel
from deployments.sglang import PLATFORMS, SglangArgs, SglangEngine


def engine(**args: Any) -> SglangEngine:
    return SglangEngine(PoolModel("nobody/nothing", "m"), SglangArgs.model_validate(args))


def test_args_pass_through_but_for_ours() -> None:
    made = engine(context_length=1024, threads=2)
    assert (made._args, made._threads) == ({"context_length": 1024}, 2)
    with pytest.raises(ValidationError):
        SglangArgs.model_validate({"threads": 0})


@pytest.mark.parametrize("name", ["model_path", "tokenizer_path", "served_model_name", "revision"])
def test_engine_args_leave_the_model_to_the_pool(name: str) -> None:
    with pytest.raises(ValidationError, match=f"'{name}' is set by the pool's own keys"):
        SglangArgs.model_validate({name: "x"})


def test_what_it_can_is_told_before_it_starts() -> None:
    plain = engine(context_length=1024).capabilities()
    assert (plain.context_length, plain.tools, plain.lora) == (1024, ("forced",), False)
    more = engine(tool_call_parser="hermes", enable_lora=True).capabilities()
    assert (more.context_length, more.tools, more.lora) == (None, ("auto", "forced"), True)


async def test_it_is_not_healthy_before_it_starts() -> None:
    with pytest.raises(EngineDeadError, match="SGLang is not started"):
        await engine().health()
    await engine().stop()


async def test_a_process_that_died_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine()
    made._engine = SimpleNamespace(get_all_child_pids=lambda: [2**22 + 1])  # above the kernel's largest
    with pytest.raises(EngineDeadError, match="SGLang's process 4194305 died"):
        await made.health()


async def test_without_the_platform_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang, "entry_points", lambda group: [])
    monkeypatch.setattr(sglang, "machine_variant", lambda: "cpu")
    with pytest.raises(ValueError, match="can't see Enginehouse's CPU platform"):
        await engine().start()


async def test_a_model_whose_embeddings_it_would_get_wrong_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang, "entry_points", lambda group: [object()])
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    with pytest.raises(ValueError, match="by mean_tokens; vLLM can"):
        await SglangEngine(PoolModel(str(tmp_path), "m"), SglangArgs()).start()


def test_the_platform_is_an_entry_point() -> None:
    found: list[EntryPoint] = [point for point in entry_points(group=PLATFORMS) if point.name == "enginehouse-cpu"]
    assert [point.load() for point in found] == [sglang_cpu.activate] * len(found) != []


@pytest.mark.parametrize(("cuda", "path"), [(True, None), (False, "deployments.sglang_cpu.CpuPlatform")])
def test_the_platform_is_inactive_where_cuda_is(monkeypatch: pytest.MonkeyPatch, cuda: bool, path: str | None) -> None:
    torch = ModuleType("torch")
    torch.cuda = SimpleNamespace(is_available=lambda: cuda)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    bound: list[bool] = []
    monkeypatch.setattr(torch_store, "bind_to_its_address", lambda: bound.append(True))
    assert (sglang_cpu.activate(), bound) == (path, [True])


def test_the_module_has_no_other_names() -> None:
    with pytest.raises(AttributeError):
        sglang_cpu.GpuPlatform  # noqa: B018


def test_pinned_memory_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []

    def make(*args: Any, **kwargs: Any) -> list[Any]:
        made.append(kwargs)
        return list(args)

    torch = ModuleType("torch")
    torch.Tensor = type("Tensor", (), {})  # type: ignore[attr-defined]
    for name in ("tensor", "zeros", "empty", "arange"):
        setattr(torch, name, make)
    monkeypatch.setitem(sys.modules, "torch", torch)
    sglang_cpu._ignore_pin_memory()
    assert torch.tensor(1, dtype="x", pin_memory=True) == [1]
    assert made == [{"dtype": "x"}]
    tensor = torch.Tensor()
    assert tensor.pin_memory() is tensor

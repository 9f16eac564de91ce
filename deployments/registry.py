"""Which engines there are. The only place that names an adapter; adapters are imported when they are needed."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from pydantic import BaseModel

from deployments.engine import Engine, PoolModel
from deployments.engine_args import EngineArgs


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Where an engine's adapter is: "module:class" each, light to import, without the engine itself."""

    adapter: str
    args: str  # of its engine_args
    has_files: bool = True  # its `model` is files that must be there; else it is but a name


ENGINES: Mapping[str, EngineSpec] = {
    "transformers": EngineSpec(
        "deployments.transformers:TransformersEngine", "deployments.transformers:TransformersArgs"
    ),
    "simulated": EngineSpec(
        "deployments.simulated:SimulatedEngine", "deployments.simulated:SimulatedArgs", has_files=False
    ),
    "sglang": EngineSpec("deployments.sglang:SglangEngine", "deployments.sglang:SglangArgs"),
    "openai": EngineSpec("deployments.openai:OpenAIEngine", "deployments.openai:OpenAIArgs", has_files=False),
    "tensorrt_llm": EngineSpec(
        "deployments.tensorrt_llm:TensorrtLLMEngine", "deployments.tensorrt_llm:TensorrtLLMArgs"
    ),
    "tgi": EngineSpec("deployments.tgi:TgiEngine", "deployments.tgi:TgiArgs", has_files=False),
    "triton": EngineSpec("deployments.triton:TritonEngine", "deployments.triton:TritonArgs"),
    "vllm": EngineSpec("deployments.vllm:VllmEngine", "deployments.vllm:VllmArgs"),
}


def register(name: str, spec: EngineSpec) -> None:
    """Add an engine that isn't Enginehouse's own. Each process that builds or runs a pool of it has to do this."""
    global ENGINES
    ENGINES = {**ENGINES, name: spec}


def args_type(engine: str) -> type[EngineArgs]:
    """The type of an engine's `engine_args`. One that isn't an `EngineArgs` gets the defaults of that."""
    return _with_defaults(_load(ENGINES[engine].args))


@cache
def _with_defaults(found: type[BaseModel]) -> type[EngineArgs]:
    if issubclass(found, EngineArgs):
        return found
    return type(found.__name__, (found, EngineArgs), {"__module__": found.__module__, "__doc__": found.__doc__})


def create(engine: str, model: PoolModel, args: EngineArgs) -> Engine:
    """The engine, not yet started; `args` is of its `args_type`."""
    adapter: type[Any] = _load(ENGINES[engine].adapter)
    created: Engine = adapter(model, args)
    return created


def _load(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)

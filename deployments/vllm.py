"""vLLM as an engine, in process, through vLLM's own OpenAI layer. Imports vLLM only when it starts."""

import asyncio
import os
from argparse import Namespace
from dataclasses import fields, replace
from typing import Any

from deployments import model_facts, models, own_layer, quantization
from deployments.engine import (
    Adapter,
    Capabilities,
    Engine,
    EngineDeadError,
    EngineRequest,
    EngineResponse,
    EngineStats,
    PoolModel,
)
from deployments.environments import machine_variant
from deployments.errors import unknown_keys
from deployments.own_answers import api_error
from deployments.own_layer import OwnLayer, PassedArgs, warm_up_request
from deployments.vllm_adapters import VllmAdapters

# vLLM's default thread binding was seen 30 times slower on a busy machine; without a bound, the CPU cache takes
# most of the memory there is.
CPU_ENVIRONMENT = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
# bfloat16 loses to float32 on CPUs without AMX; blocks of 32 let short prompts hit the prefix cache. A prefill is cut
# small, because nothing else happens while a part of it is computed: no token for others, no abort.
CPU_ARGS = {"dtype": "float32", "enforce_eager": True, "block_size": 32, "max_num_batched_tokens": 512}

DEFAULT_MAX_LORA_RANK = 16  # vLLM's own


class VllmArgs(PassedArgs):
    """`engine_args` of a vLLM pool: vLLM's own engine and frontend arguments, by their Python names."""

    pool_keys = frozenset({"model", "model_tag", "served_model_name", "revision"})
    size_keys = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    memory_key = "gpu_memory_utilization"


class VllmEngine(Engine):
    """An `AsyncLLM`, whose engine core is a child process, under vLLM's OpenAI handlers."""

    name = "vllm"

    def __init__(self, model: PoolModel, args: VllmArgs) -> None:
        self._model = model
        self._args = dict(args.model_extra or {})
        self._facts = model_facts.of(model)
        self._engine: Any = None
        self._counts: Any = None
        self._layer = OwnLayer(self.name, model.served_name)
        self._adapters = VllmAdapters(None)

    async def start(self) -> None:
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        if machine_variant() == "cpu":
            for name, value in CPU_ENVIRONMENT.items():
                os.environ.setdefault(name, value)
        path = await asyncio.to_thread(models.resolve, self._model.source, self._model.revision)
        self._facts = model_facts.read(path)
        quantization.check(self.name, path, self._args.get("quantization"))
        await self._start_engine({"model": str(path), "served_model_name": [self._model.served_name]})
        await self.handle(warm_up_request(self._layer.handlers))

    async def _start_engine(self, where: dict[str, Any]) -> None:
        from starlette.datastructures import State
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.entrypoints.launchers.cli_args import FrontendArgs
        from vllm.entrypoints.openai.api_server import init_app_state
        from vllm.v1.engine.async_llm import AsyncLLM

        from deployments.vllm_layer import Counter, handlers

        given = where | (CPU_ARGS if machine_variant() == "cpu" else {}) | self._args
        engine_names, frontend_names = _names(AsyncEngineArgs), _names(FrontendArgs)
        if unknown := unknown_keys(given, engine_names | frontend_names, "engine_args key"):
            raise ValueError(" ".join(unknown))
        engine_args = AsyncEngineArgs(**{name: value for name, value in given.items() if name in engine_names})
        frontend_args = FrontendArgs(**{name: value for name, value in given.items() if name in frontend_names})
        self._counts = counts = Counter()
        self._engine = AsyncLLM.from_engine_args(engine_args, stat_loggers=[lambda *_: counts])
        state = State()
        tasks = await self._engine.get_supported_tasks()
        await init_app_state(self._engine, state, Namespace(**vars(frontend_args) | vars(engine_args)), tasks)
        self._layer = OwnLayer(self.name, self._model.served_name, handlers(state, self._engine.model_config))
        self._adapters = VllmAdapters(state.openai_serving_models)

    async def handle(self, request: EngineRequest) -> EngineResponse:
        if request.adapter is not None:
            self._adapters.refuse_gone(request.adapter)
        from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
        from vllm.exceptions import VLLMError
        from vllm.v1.engine.exceptions import EngineDeadError as VllmDeadError

        try:
            return await self._layer.handle(request)
        except VllmDeadError as error:
            raise EngineDeadError(f"vLLM's engine core died: {error}") from error
        except (VLLMError, ValueError, TypeError, OverflowError, NotImplementedError) as error:
            # vLLM's own server leaves these to the exception handlers of its app. The message is the exception's own,
            # without the parameter and value that vLLM adds when it is printed.
            message = str(error.args[0]) if error.args else str(error)
            answer = create_error_response(error).error.model_dump()
            raise api_error({**answer, "message": message}, request) from error

    async def health(self) -> None:
        try:
            await self._engine.check_health()
        except Exception as error:
            raise EngineDeadError(f"vLLM is not healthy: {error}") from error

    async def stats(self) -> EngineStats:
        # The scheduler reports only after a step: what it hasn't yet reported waits, what has gone doesn't run.
        unfinished: int = self._engine.output_processor.get_num_unfinished_requests()
        return self._counts.stats(unfinished)  # type: ignore[no-any-return]

    def capabilities(self) -> Capabilities:
        parses = self._args.get("enable_auto_tool_choice") and self._args.get("tool_call_parser")
        length = self._engine.model_config.max_model_len if self._engine else self._args.get("max_model_len")
        adapts = bool(self._args.get("enable_lora"))
        can = own_layer.capabilities(self._facts, self._layer.handlers, length, auto_tools=bool(parses), lora=adapts)
        return replace(can, max_lora_rank=self._args.get("max_lora_rank", DEFAULT_MAX_LORA_RANK) if adapts else None)

    async def load_adapter(self, adapter: Adapter) -> None:
        await self._adapters.load(adapter)

    async def unload_adapter(self, name: str) -> None:
        await self._adapters.unload(name)

    async def stop(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.to_thread(engine.shutdown)


def _names(dataclass: Any) -> set[str]:
    return {field.name for field in fields(dataclass)}

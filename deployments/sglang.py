"""SGLang as an engine, in process, through SGLang's own OpenAI layer. Imports SGLang only when it starts."""

import asyncio
import os
from dataclasses import replace
from importlib.metadata import entry_points
from typing import Any

from pydantic import Field

from deployments import lora, model_facts, models, own_layer, quantization
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
from deployments.own_layer import OwnLayer, PassedArgs, warm_up_request

# A prefill is cut small, because nothing else happens while a part of it is computed: no token for others, no abort.
CPU_ARGS = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "lora_backend": "torch_native",
    "dtype": "float32",
    "chunked_prefill_size": 512,
    "max_total_tokens": 16384,
    "max_running_requests": 16,
    "sleep_on_idle": True,  # else the scheduler takes a whole core while it waits for a request
}
PLATFORMS = "sglang.srt.platforms"
ARGS = {
    "log_level": "error",
    "enable_cache_report": True,
    "constrained_json_disable_any_whitespace": True,  # a small model would fill its answer with it
    "load_snapshot_publish_interval": 1,  # in scheduler steps: stats tell of now
}


class SglangArgs(PassedArgs):
    """`engine_args` of an SGLang pool: SGLang's own `ServerArgs`, by their Python names."""

    pool_keys = frozenset({"model_path", "tokenizer_path", "served_model_name", "revision"})
    size_keys = ("tp_size", "pp_size")
    memory_key = "mem_fraction_static"
    memory = 0.85  # SGLang reckons with 0.8 and more, by the GPU

    threads: int | None = Field(None, ge=1, description="CPU threads of a forward pass; default: all of the machine's.")


class SglangEngine(Engine):
    """An `sgl.Engine`, whose scheduler and detokenizer are child processes, under SGLang's OpenAI handlers.

    The child processes take this one down when they fail, by SIGQUIT; then the whole replica is replaced.
    """

    name = "sglang"

    def __init__(self, model: PoolModel, args: SglangArgs) -> None:
        self._model = model
        self._threads = args.threads
        self._args = dict(args.model_extra or {})
        self._facts = model_facts.of(model)
        self._engine: Any = None
        self._counts: Any = None
        self._layer = OwnLayer(self.name, model.served_name)

    async def start(self) -> None:
        if self._threads is not None:
            os.environ["OMP_NUM_THREADS"] = str(self._threads)  # for the scheduler's process
        if machine_variant() == "cpu" and not entry_points(group=PLATFORMS):
            raise ValueError(f"SGLang can't see Enginehouse's CPU platform (entry point {PLATFORMS}): install it again")
        path = await asyncio.to_thread(models.resolve, self._model.source, self._model.revision)
        self._facts = model_facts.read(path)
        quantization.check(self.name, path, self._args.get("quantization"))
        if not self._facts.generates and (pooling := model_facts.pooling(path)) not in (None, "lasttoken"):
            # Seen: 0.5.23 takes the last token's vector whatever the model says.
            raise ValueError(f"SGLang can't pool this model's embeddings as it was trained, by {pooling}; vLLM can")
        await self._start_engine({"model_path": str(path), "served_model_name": self._model.served_name})
        await self.handle(warm_up_request(self._layer.handlers))

    async def _start_engine(self, where: dict[str, Any]) -> None:
        from sglang import Engine as SglEngine
        from sglang.srt.server_args import ServerArgs

        from deployments.sglang_layer import Counter, handlers, names

        given = where | ARGS | (CPU_ARGS if machine_variant() == "cpu" else {}) | self._args
        if unknown := unknown_keys(given, names(ServerArgs), "engine_args key"):
            raise ValueError(" ".join(unknown))
        # Beside the event loop: it takes as long as the model takes to load.
        self._engine = await asyncio.to_thread(SglEngine, **given)
        self._counts = Counter.attach_to(self._engine.tokenizer_manager)
        found = handlers(self._engine, generates=not given.get("is_embedding", False))
        self._layer = OwnLayer(self.name, self._model.served_name, found, id_field=None, adapter_field="lora_path")

    async def handle(self, request: EngineRequest) -> EngineResponse:
        return await self._layer.handle(request)

    async def health(self) -> None:
        if self._engine is None:
            raise EngineDeadError("SGLang is not started")
        from psutil import STATUS_ZOMBIE, NoSuchProcess, Process

        for pid in self._engine.get_all_child_pids():
            try:
                gone = Process(pid).status() == STATUS_ZOMBIE
            except NoSuchProcess:
                gone = True
            if gone:
                raise EngineDeadError(f"SGLang's process {pid} died")

    async def stats(self) -> EngineStats:
        return await self._counts.stats()  # type: ignore[no-any-return]

    def capabilities(self) -> Capabilities:
        length = self._engine.tokenizer_manager.context_len if self._engine else self._args.get("context_length")
        auto_tools = bool(self._args.get("tool_call_parser"))
        adapts = bool(self._args.get("enable_lora"))
        can = own_layer.capabilities(self._facts, self._layer.handlers, length, auto_tools=auto_tools, lora=adapts)
        return replace(can, max_lora_rank=self._args.get("max_lora_rank") if adapts else None)

    async def load_adapter(self, adapter: Adapter) -> None:
        _raise_refusal(await self._engine.async_load_lora_adapter(adapter.name, str(adapter.path)))

    async def unload_adapter(self, name: str) -> None:
        _raise_refusal(await self._engine.async_unload_lora_adapter(name))

    async def stop(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.to_thread(engine.shutdown)  # kills every child of this process, and waits for it


def _raise_refusal(answer: Any) -> None:
    if not answer.success:
        raise lora.refused(f"SGLang refuses the adapter: {answer.error_message}")

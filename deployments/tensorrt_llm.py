"""TensorRT-LLM as an engine, in process: its PyTorch backend, or an engine compiled by `trtllm-build`.

Written to the contract of TensorRT-LLM 1.2 (`tensorrt_contract`); it has run against a stand-in that keeps it, and on
no GPU yet. TensorRT-LLM is imported only when the engine starts.
"""

import asyncio
import itertools
import logging
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from deployments import (
    lora,
    model_facts,
    models,
    tensorrt_build,
    tensorrt_cache,
    tensorrt_check,
    tensorrt_llm_requests,
)
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
from deployments.errors import ApiError
from deployments.openai_layer.layer import OpenAILayer
from deployments.openai_layer.text import Tokenizer
from deployments.openai_layer.tokens import Finish, Sampling, Token
from deployments.own_layer import PassedArgs
from deployments.tensorrt_build import BuildArgs

logger = logging.getLogger("ray.serve")

HONOURS = ("frequency_penalty", "presence_penalty", "response_format")
# What an operator gets who says nothing else.
DEFAULTS: dict[str, Any] = {"guided_decoding_backend": "xgrammar"}
PYTORCH_DEFAULTS = {"enable_chunked_prefill": True, "enable_iter_perf_stats": True}
IDLE_S = 0.2  # an engine that has had no iteration for so long, and has no request, computes nothing


class TensorrtLLMArgs(PassedArgs):
    """`engine_args` of a TensorRT-LLM pool: `LLM`'s own keywords, and what to compile."""

    pool_keys = frozenset({"model", "tokenizer", "revision", "tokenizer_revision", "skip_tokenizer_init", "backend"})
    size_keys = ("tensor_parallel_size", "pipeline_parallel_size")

    mode: Literal["pytorch", "tensorrt"] = Field(
        "pytorch", description="`tensorrt` compiles an engine first, which takes minutes to hours, once."
    )
    checkpoint: str | None = Field(
        None, description="Folder of the converted checkpoint that `trtllm-build` compiles; `tensorrt` only."
    )
    engine_folder: str | None = Field(
        None, description="Folder of an engine that is compiled already, instead of `checkpoint`; `tensorrt` only."
    )
    build: BuildArgs = Field(BuildArgs(), description="`trtllm-build`'s parameters; `tensorrt` only.")
    tensor_parallel_size: int = Field(1, ge=1, description="GPUs that share each layer.")
    pipeline_parallel_size: int = Field(1, ge=1, description="Groups of layers, on GPUs of their own.")

    @model_validator(mode="after")
    def _fits_its_mode(self) -> "TensorrtLLMArgs":
        of_tensorrt = {"checkpoint", "build", "engine_folder"} & self.model_fields_set
        if self.mode == "pytorch" and of_tensorrt:
            raise ValueError(f"'{min(of_tensorrt)}' belongs to mode tensorrt; the PyTorch backend compiles nothing")
        if self.mode == "tensorrt" and (self.checkpoint is None) == (self.engine_folder is None):
            raise ValueError("mode tensorrt needs 'checkpoint', which trtllm-build compiles, or else 'engine_folder'")
        return self


def compiled(model: PoolModel, args: TensorrtLLMArgs, report: Callable[[str], None]) -> Path:
    """The folder of a pool's compiled engine, compiled first where there is none.

    Raises:
        BuildError: it can't be compiled here, or isn't for this machine.
    """
    machine = tensorrt_build.find_machine()
    if args.engine_folder is not None:
        folder = Path(args.engine_folder).expanduser().absolute()
        sizes = args.tensor_parallel_size, args.pipeline_parallel_size
        tensorrt_check.check(folder, machine, *sizes, f"run trtllm-build with --output_dir={folder} on this machine")
        return folder
    build = tensorrt_build.build_of(model, args, machine)
    executable = tensorrt_build.find_executable([Path(sys.executable).parent])
    return tensorrt_cache.engine_for(build, report, executable)


class TensorrtLLMEngine(Engine):
    """A `tensorrt_llm.LLM` under the shared OpenAI layer, which makes the tokens of its prompts."""

    name = "tensorrt_llm"

    def __init__(self, model: PoolModel, args: TensorrtLLMArgs) -> None:
        self._model = model
        self._args = args
        passed = (PYTORCH_DEFAULTS if args.mode == "pytorch" else {}) | DEFAULTS | dict(args.model_extra or {})
        self._passed: dict[str, Any] = passed
        self._facts = model_facts.of(model)
        self._llm: Any = None
        self._tokenizer: Any = None
        self._layer: OpenAILayer | None = None
        self._ends = tensorrt_llm_requests.Ends(-1, -1)
        self._died: str | None = None
        self._in_flight = self._prompt_tokens = self._generated_tokens = 0
        self._iteration: dict[str, Any] = {}
        self._iterated_s = 0.0  # when, on the event loop's clock
        self._stats_reader: asyncio.Task[None] | None = None
        self._adapters: dict[str, Any] = {}
        self._adapter_ids = itertools.count(1)
        self.context_length = 0
        self.eos_token_ids: frozenset[int] = frozenset()

    @property
    def tokenizer(self) -> Tokenizer:
        tokenizer: Tokenizer = self._tokenizer
        return tokenizer

    async def start(self) -> None:
        path = await asyncio.to_thread(models.resolve, self._model.source, self._model.revision)
        self._facts = model_facts.read(path)
        engine = None
        if self._args.mode == "tensorrt":
            engine = await asyncio.to_thread(compiled, self._model, self._args, logger.info)
        # Beside the event loop: it takes as long as the model takes to load.
        await asyncio.to_thread(self._load, path, engine)
        self._stats_reader = asyncio.create_task(self._read_stats())
        self._layer = OpenAILayer(self, self._model.served_name, HONOURS)
        async for _ in self.generate(self._tokenizer.encode("Hello"), Sampling(max_tokens=2, temperature=0)):
            pass

    def _load(self, path: Path, engine: Path | None) -> None:
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(path)
        self.eos_token_ids = model_facts.eos_token_ids(path, self._tokenizer.eos_token_id)
        self._ends = tensorrt_llm_requests.Ends.of(self.eos_token_ids, self._tokenizer.pad_token_id)
        self.context_length = self._find_context_length(engine)
        sizes = ("tensor_parallel_size", "pipeline_parallel_size")
        given = {name: getattr(self._args, name) for name in sizes} | self._passed
        if engine is None:
            from tensorrt_llm import LLM
        else:
            from tensorrt_llm._tensorrt_engine import LLM
        self._llm = LLM(model=str(engine or path), tokenizer=str(path), **given)

    def _find_context_length(self, engine: Path | None) -> int:
        """The tokens that the engine was compiled for, that it is told to serve, or that the model was trained for."""
        found = model_facts.compiled_length(engine) if engine else self._passed.get("max_seq_len")
        if not (length := found or self._facts.context_length):
            raise ValueError("how long the context is can't be told from the model's files: set max_seq_len")
        return int(length)

    async def handle(self, request: EngineRequest) -> EngineResponse:
        assert self._layer is not None, "start() comes first"
        return await self._layer.handle(request)

    async def generate(self, prompt: list[int], sampling: Sampling) -> AsyncGenerator[Token | Finish]:
        running = self._submit(prompt, sampling)
        self._in_flight += 1
        self._prompt_tokens += len(prompt)
        sent = 0
        try:
            async with aclosing(self._guarded(running)) as outputs:
                async for output in outputs:
                    completion = output.outputs[0]
                    for token in tensorrt_llm_requests.new_tokens(completion, sent, sampling.logprobs):
                        sent += 1
                        self._generated_tokens += 1
                        yield token
                    if completion.finish_reason is not None:
                        yield Finish(tensorrt_llm_requests.finish(completion.finish_reason))
        finally:
            self._in_flight -= 1
            if not running.finished and self._died is None:
                running.abort()  # leaving the loop doesn't

    def _submit(self, prompt: list[int], sampling: Sampling) -> Any:
        """Start a request. Its prompt is tokens, for `generate_async` would make them on this event loop."""
        from tensorrt_llm import SamplingParams
        from tensorrt_llm.llmapi import GuidedDecodingParams

        self._raise_if_dead()
        wanted = tensorrt_llm_requests.sampling_params(sampling, self._ends)
        if sampling.guide is not None:
            wanted["guided_decoding"] = GuidedDecodingParams(**tensorrt_llm_requests.guided_decoding(sampling.guide))
        adapter = self._adapters[sampling.adapter] if sampling.adapter else None
        try:
            return self._llm.generate_async(prompt, SamplingParams(**wanted), lora_request=adapter, streaming=True)
        except ValueError as error:
            raise tensorrt_llm_requests.refused(str(error)) from error
        except RuntimeError as error:
            raise self._dead(f"TensorRT-LLM takes no more requests: {error}") from error

    async def _guarded(self, running: Any) -> AsyncGenerator[Any]:
        """A request's outputs, with its errors told apart: of the request, or of the whole engine."""
        from tensorrt_llm.executor import CppExecutorError, RequestError

        try:
            async for output in running:
                yield output
        except CppExecutorError as error:
            raise self._dead(f"TensorRT-LLM's executor failed: {error}") from error
        except RequestError as error:
            raise tensorrt_llm_requests.refused(str(error)) from error

    def _dead(self, why: str) -> EngineDeadError:
        self._died = self._died or why
        return EngineDeadError(why)

    def _raise_if_dead(self) -> None:
        if self._llm is None:
            raise EngineDeadError("TensorRT-LLM is not started")
        if self._died is not None:
            raise EngineDeadError(self._died)

    async def health(self) -> None:
        self._raise_if_dead()
        if not self._llm._check_health():
            raise self._dead("TensorRT-LLM's executor has shut down")

    async def stats(self) -> EngineStats:
        """By the last iteration that there was; an engine that computes nothing has no iterations."""
        self._raise_if_dead()
        if self._stats_reader is not None and self._stats_reader.done():
            self._stats_reader.result()
        if not self._in_flight and asyncio.get_running_loop().time() - self._iterated_s > IDLE_S:
            idle = {"numActiveRequests": 0, "numQueuedRequests": 0, "inflightBatchingStats": None}
            self._iteration = self._iteration | idle
        return tensorrt_llm_requests.stats(self._iteration, self._prompt_tokens, self._generated_tokens)

    async def _read_stats(self) -> None:
        """While the engine lives: TensorRT-LLM keeps the statistics of each iteration until they are read."""
        while True:
            async for iteration in self._llm.get_stats_async(timeout=1):
                self._iteration, self._iterated_s = iteration, asyncio.get_running_loop().time()
            await asyncio.sleep(IDLE_S)

    def capabilities(self) -> Capabilities:
        facts = self._facts
        adapts = bool(self._passed.get("enable_lora"))
        lora_config = self._passed.get("lora_config")
        return Capabilities(
            endpoints=OpenAILayer.ENDPOINTS if facts.chats else OpenAILayer.ENDPOINTS[1:],
            context_length=self.context_length or self._passed.get("max_seq_len") or facts.context_length,
            json_schema=self._passed.get("guided_decoding_backend") is not None,
            logprobs=True,
            n=True,
            lora=adapts,
            max_lora_rank=lora_config.get("max_lora_rank") if adapts and isinstance(lora_config, dict) else None,
        )

    async def load_adapter(self, adapter: Adapter) -> None:
        """TensorRT-LLM loads an adapter with the first request that names it: so one is made here."""
        from tensorrt_llm.executor import LoRARequest

        try:
            self._adapters[adapter.name] = LoRARequest(
                lora_name=adapter.name, lora_int_id=next(self._adapter_ids), lora_path=str(adapter.path)
            )
            sampling = Sampling(max_tokens=1, temperature=0, adapter=adapter.name)
            async for _ in self.generate(self._tokenizer.encode("Hello"), sampling):
                pass
        except (ApiError, ValueError) as error:
            self._adapters.pop(adapter.name, None)
            raise lora.refused(f"TensorRT-LLM refuses the adapter: {error}") from error

    async def unload_adapter(self, name: str) -> None:
        """Its weights leave the GPU when their place is needed: TensorRT-LLM has no call for it."""
        del self._adapters[name]

    async def stop(self) -> None:
        if self._layer is not None:
            self._layer.close()
        if self._stats_reader is not None:
            self._stats_reader.cancel()
            await asyncio.gather(self._stats_reader, return_exceptions=True)
        llm, self._llm = self._llm, None
        if llm is not None:
            await asyncio.to_thread(llm.shutdown)

"""Transformers' continuous batching as an engine: runs any causal model on any machine, fast on none.

It relies on internals of transformers' continuous batching (the logits processor's row order, the scheduler's
tables): the extra pins one minor version, and tests hold what is used here.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import queue
from collections.abc import AsyncGenerator
from typing import Any, Literal

from pydantic import Field

from deployments import model_facts, models, quantization
from deployments.engine import (
    Capabilities,
    Engine,
    EngineDeadError,
    EngineRequest,
    EngineResponse,
    EngineStats,
    PoolModel,
)
from deployments.engine_args import EngineArgs
from deployments.openai_layer.layer import OpenAILayer
from deployments.openai_layer.text import Tokenizer
from deployments.openai_layer.tokens import Sampling, Token
from deployments.sampling import TokenChooser, per_request_sampling

logger = logging.getLogger(__name__)

LOOK_S = 5.0  # how long a request waits for its next token before it looks whether the batching thread is alive


class TransformersArgs(EngineArgs):
    """`engine_args` of a Transformers pool."""

    dtype: Literal["float32", "bfloat16", "float16"] = Field("float32", description="Type of weights and KV cache.")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="`auto`: a GPU if the replica has one.")
    max_model_len: int | None = Field(
        None, ge=16, description="Most tokens of prompt and answer; default: the lesser of the model's and the cache's."
    )
    kv_cache_tokens: int = Field(8192, ge=256, description="KV cache, in tokens, shared by all running requests.")
    block_size: int = Field(32, ge=1, le=256, description="Tokens a KV-cache block.")
    max_num_batched_tokens: int = Field(256, ge=16, description="Most tokens a forward pass; longer prompts are cut.")
    max_num_seqs: int = Field(32, ge=1, description="Most requests that run together; others wait.")
    threads: int | None = Field(None, ge=1, description="CPU threads of a forward pass; default: all of the machine's.")

    def gpus(self) -> int:
        return int(self.device == "cuda")


class TransformersEngine(Engine):
    """A causal language model under transformers' continuous batching, in this process."""

    name = "transformers"

    def __init__(self, model: PoolModel, args: TransformersArgs) -> None:
        self._model = model
        self._args = args
        self._ids = itertools.count()
        self._manager: Any = None
        self._tokenizer: Any = None
        self._layer: OpenAILayer | None = None
        self._facts = model_facts.of(model)
        self._prompt_tokens = self._generated_tokens = self._cached_tokens = 0
        self.context_length = 0
        self.eos_token_ids: frozenset[int] = frozenset()

    @property
    def tokenizer(self) -> Tokenizer:
        tokenizer: Tokenizer = self._tokenizer
        return tokenizer

    async def start(self) -> None:
        await asyncio.to_thread(self._load)
        self._layer = OpenAILayer(self, self._model.served_name)
        warm_up = self._tokenizer.encode("Hello")
        async for _ in self.generate(warm_up, Sampling(max_tokens=2, temperature=0)):
            pass
        self._count_prefix_hits()

    def _load(self) -> None:
        path = models.resolve(self._model.source, self._model.revision)
        quantization.check(self.name, path)
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        device = self._device(torch.cuda.is_available())
        if device == "cpu":
            torch.set_num_threads(self._args.threads or len(os.sched_getaffinity(0)))
        self._tokenizer = AutoTokenizer.from_pretrained(path)
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=getattr(torch, self._args.dtype), attn_implementation="sdpa"
        ).to(device)
        self.eos_token_ids = model_facts.token_ids(model.generation_config.eos_token_id, self._tokenizer.eos_token_id)
        self.context_length = self._context_length(model.config)
        self._manager = self._start_batching(model)

    def _device(self, has_cuda: bool) -> str:
        if self._args.device == "auto":
            return "cuda" if has_cuda else "cpu"
        return self._args.device

    def _context_length(self, config: Any) -> int:
        """One request larger than the cache would kill the batching thread: the context never exceeds it."""
        trained = getattr(config.get_text_config(), "max_position_embeddings", None) or self._args.kv_cache_tokens
        return min(trained, self._cache_tokens, self._args.max_model_len or trained)

    @property
    def _cache_tokens(self) -> int:
        return self._args.kv_cache_tokens // self._args.block_size * self._args.block_size

    def _start_batching(self, model: Any) -> Any:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        eos = sorted(self.eos_token_ids)
        pad = self._tokenizer.pad_token_id
        manager = model.init_continuous_batching(
            generation_config=GenerationConfig(
                do_sample=False, eos_token_id=eos or None, pad_token_id=eos[0] if pad is None and eos else pad
            ),
            continuous_batching_config=ContinuousBatchingConfig(
                num_blocks=self._cache_tokens // self._args.block_size,
                page_size=self._args.block_size,
                max_batch_tokens=self._args.max_num_batched_tokens,
                max_requests_per_batch=self._args.max_num_seqs,
            ),
        )
        manager.logit_processor = per_request_sampling()
        manager.start()
        return manager

    async def handle(self, request: EngineRequest) -> EngineResponse:
        assert self._layer is not None, "start() comes first"
        return await self._layer.handle(request)

    async def generate(self, prompt: list[int], sampling: Sampling) -> AsyncGenerator[Token]:
        request_id = f"{next(self._ids)}"
        chooser = TokenChooser(sampling)
        outputs: asyncio.Queue[Any] = asyncio.Queue()
        self._raise_if_dead()
        self._manager.register_result_handler(request_id, outputs.put_nowait)
        finished = False
        self._prompt_tokens += len(prompt)
        try:
            self._manager.add_request(
                prompt,
                request_id=request_id,
                max_new_tokens=sampling.max_tokens,
                eos_token_id=sorted(self.eos_token_ids) or -1,
                streaming=True,
                chooser=chooser,
            )
            sent = 0
            while not finished:
                output = await self._next(outputs)
                finished = output.is_finished()
                if output.error is not None:
                    self._raise_if_dead()
                    raise RuntimeError(f"transformers failed a request: {output.error}")
                for token_id in output.generated_tokens[sent:]:
                    self._generated_tokens += 1
                    yield chooser.token(sent, token_id)
                    sent += 1
        finally:
            if not finished:
                self._cancel(request_id)

    async def _next(self, outputs: "asyncio.Queue[Any]") -> Any:
        """The next output; looks every `LOOK_S` whether the batching thread is there to send one."""
        while True:
            with contextlib.suppress(TimeoutError):
                # Not wait_for: before Python 3.12 it loses a cancellation that comes at the moment of an output.
                async with asyncio.timeout(LOOK_S):
                    return await outputs.get()
            self._raise_if_dead()

    def _cancel(self, request_id: str) -> None:
        self._manager.cancel_request(request_id)
        router = self._manager.output_router
        with router._lock:
            router.result_handlers.pop(request_id, None)
        # Outputs without a handler are kept for nobody.
        with contextlib.suppress(queue.Empty):
            while True:
                router.output_queue.get_nowait()

    def _raise_if_dead(self) -> None:
        manager = self._manager
        if manager is None:
            raise EngineDeadError("transformers is not started")
        if (error := manager.background_thread_status.fatal_error) is not None:
            raise EngineDeadError(f"transformers' batching thread died: {error}")
        if (refusal := manager.background_thread_status.can_accept_new_requests()) is not None:
            raise EngineDeadError(f"transformers takes no more requests: {refusal}")

    async def health(self) -> None:
        self._raise_if_dead()

    def _count_prefix_hits(self) -> None:
        cache = self._manager.batch_processor.cache
        search = cache.search_prefix_match

        def counted(request_id: str, prompt_ids: list[int]) -> int:
            found: int = search(request_id, prompt_ids)
            self._cached_tokens += found
            return found

        cache.search_prefix_match = counted

    async def stats(self) -> EngineStats:
        self._raise_if_dead()
        processor = self._manager.batch_processor
        running = len(processor.scheduler.active_requests) if processor else 0
        queued = len(processor.scheduler.waiting_requests) if processor else 0
        return EngineStats(
            running=running,
            waiting=queued + self._manager.input_queue.qsize(),
            kv_cache_usage=1 - processor.cache.compute_free_capacity() if processor else 0,
            prefix_hit_rate=self._cached_tokens / self._prompt_tokens if self._prompt_tokens else None,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
        )

    def capabilities(self) -> Capabilities:
        facts = self._facts
        return Capabilities(
            endpoints=OpenAILayer.ENDPOINTS if facts.chats else OpenAILayer.ENDPOINTS[1:],
            context_length=self.context_length or self._args.max_model_len or facts.context_length,
            logprobs=True,
            n=True,
        )

    async def stop(self) -> None:
        if self._layer is not None:
            self._layer.close()
        manager, self._manager = self._manager, None
        if manager is not None:
            await asyncio.to_thread(manager.stop, block=True, timeout=10, hard_stop=True)

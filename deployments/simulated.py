"""An engine that runs no model: a timing model paces answers of words, and faults come when they are asked for.

For benchmarks and tests of everything around an engine. Each answer has a header that says that it is simulated.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import fields, replace
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from deployments.batching import Request, Scheduler
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
from deployments.errors import ApiError
from deployments.openai_layer.layer import OpenAILayer
from deployments.openai_layer.text import Tokenizer
from deployments.openai_layer.tokens import Sampling, Token
from deployments.simulated_answers import Author, falls_on
from deployments.simulated_loop import BatchLoop
from deployments.simulated_tokenizer import SimulatedTokenizer
from deployments.timing import TimingModel

_DEFAULT = TimingModel()


class Faults(BaseModel):
    """What goes wrong, on purpose."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    start_s: float = Field(0, ge=0, description="Seconds that a start takes.")
    fail_start: bool = Field(False, description="A start fails, after `start_s`.")
    health_fails_after_s: float | None = Field(
        None,
        ge=0,
        description="Seconds after the start from which health checks fail, so that the replica is replaced.",
    )
    die_after_tokens: int | None = Field(
        None, ge=1, description="Tokens, of all requests together, after which the engine is dead."
    )
    error_rate: float = Field(
        0, ge=0, le=1, description="Share of prompts that get a 500. The same prompt always does, or never."
    )
    error_after_tokens: int = Field(0, ge=0, description="Tokens that come before such an error.")
    hang_rate: float = Field(
        0, ge=0, le=1, description="Share of prompts whose answer never ends. The same prompt always does, or never."
    )
    hang_after_tokens: int = Field(0, ge=0, description="Tokens that come before an answer hangs.")
    seed: int = Field(0, description="Which prompts the shares fall on.")


class SimulatedArgs(EngineArgs):
    """`engine_args` of a simulated pool. A step of its engine takes `step_s`, and `sequence_s` for each request that
    generates, and the prefill of what came in. Its `model` is but a name."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    text: str | None = Field(None, description="The answer to everything; default: words that the prompt decides.")
    answer_tokens: int = Field(
        64, ge=1, description="Tokens of an answer without `text`, the one that ends it included."
    )
    max_model_len: int = Field(
        8192, ge=16, description="Most tokens of prompt and answer; never more than the KV cache holds."
    )
    time_factor: float = Field(1, ge=0, description="Multiplies all of the times below; 0: as fast as possible.")
    token_interval_s: float | None = Field(
        None, ge=0, description="Seconds of every step, whatever is in it, instead of the four times below."
    )
    prefill_tokens_per_s: float = Field(
        _DEFAULT.prefill_tokens_per_s, gt=0, description="Prompt tokens a second, of those not in the prefix cache."
    )
    step_s: float = Field(_DEFAULT.step_s, ge=0, description="Seconds of every step.")
    sequence_s: float = Field(_DEFAULT.sequence_s, ge=0, description="Seconds a step and request that generates.")
    cached_token_s: float = Field(
        _DEFAULT.cached_token_s, ge=0, description="Seconds a step and token that such requests have in the KV cache."
    )
    kv_blocks: int = Field(_DEFAULT.kv_blocks, ge=1, description="Blocks of the KV cache, shared by all requests.")
    block_size: int = Field(_DEFAULT.block_size, ge=1, description="Tokens a KV-cache block.")
    max_num_seqs: int = Field(_DEFAULT.max_num_seqs, ge=1, description="Most requests that run together; others wait.")
    max_num_batched_tokens: int = Field(
        _DEFAULT.max_num_batched_tokens, ge=1, description="Most tokens a step; longer prompts are cut."
    )
    faults: Faults = Field(Faults(), description="What goes wrong, on purpose; default: nothing.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self.timing()
        return self

    def timing(self) -> TimingModel:
        model = TimingModel(**{parameter.name: getattr(self, parameter.name) for parameter in fields(TimingModel)})
        if self.token_interval_s is None:
            return model
        return replace(
            model, prefill_tokens_per_s=float("inf"), step_s=self.token_interval_s, sequence_s=0, cached_token_s=0
        )


class SimulatedEngine(Engine):
    """A token engine without a model, under the same OpenAI layer as a real one."""

    name = "simulated"
    headers = {"x-enginehouse-simulated": "true"}

    def __init__(self, model: PoolModel, args: SimulatedArgs) -> None:
        self._model = model
        self._args = args
        self._ids = itertools.count()
        timing = args.timing()
        self._scheduler = Scheduler(timing)
        self._loop = BatchLoop(
            self._scheduler, time_factor=args.time_factor, die_after_tokens=args.faults.die_after_tokens
        )
        self._tokenizer: SimulatedTokenizer | None = None
        self._author: Author | None = None
        self._layer: OpenAILayer | None = None
        self._started_s: float | None = None  # on the event loop's clock
        self.context_length = min(args.max_model_len, timing.kv_tokens)
        self.eos_token_ids: frozenset[int] = frozenset()

    @property
    def tokenizer(self) -> Tokenizer:
        assert self._tokenizer is not None, "start() comes first"
        return self._tokenizer

    async def start(self) -> None:
        faults = self._args.faults
        await asyncio.sleep(faults.start_s)
        if faults.fail_start:
            raise ValueError("engine_args.faults.fail_start is set: the start fails")
        self._tokenizer = await asyncio.to_thread(SimulatedTokenizer)
        self._author = Author(self._tokenizer, self._args.text, self._args.answer_tokens)
        self.eos_token_ids = frozenset({self._tokenizer.end_id})
        self._layer = OpenAILayer(self, self._model.served_name)
        self._loop.start()
        self._started_s = asyncio.get_running_loop().time()

    async def handle(self, request: EngineRequest) -> EngineResponse:
        self._loop.raise_if_dead()
        assert self._layer is not None, "start() comes first"
        return await self._layer.handle(request)

    async def generate(self, prompt: list[int], sampling: Sampling) -> AsyncGenerator[Token]:
        assert self._author is not None, "start() comes first"
        faults = self._args.faults
        answer = self._author.answer(prompt, sampling)
        hangs = falls_on(prompt, "hang", faults.hang_rate, faults.seed)
        error_at = faults.error_after_tokens if falls_on(prompt, "error", faults.error_rate, faults.seed) else None
        request = Request(
            id=str(next(self._ids)),
            prompt=prompt,
            max_tokens=len(answer.ids),
            answer=answer.ids,
            stalls_after=faults.hang_after_tokens if hangs else None,
        )
        if error_at == 0:
            raise _asked_for_error()
        async with aclosing(self._loop.tokens(request)) as indices:
            async for index in indices:
                yield answer.token(index, sampling.logprobs)
                if index + 1 == error_at:
                    raise _asked_for_error()

    async def health(self) -> None:
        self._loop.raise_if_dead()
        after_s = self._args.faults.health_fails_after_s
        if self._started_s is None or after_s is None:
            return
        if asyncio.get_running_loop().time() - self._started_s >= after_s:
            raise EngineDeadError("the simulated engine is unhealthy, as faults.health_fails_after_s asks")

    async def stats(self) -> EngineStats:
        self._loop.raise_if_dead()
        scheduler = self._scheduler
        return EngineStats(
            running=scheduler.running,
            waiting=scheduler.waiting,
            kv_cache_usage=scheduler.kv_usage,
            prefix_hit_rate=scheduler.hit_rate,
            prompt_tokens=scheduler.prompt_tokens,
            generated_tokens=scheduler.generated_tokens,
        )

    def capabilities(self) -> Capabilities:
        return Capabilities(endpoints=OpenAILayer.ENDPOINTS, context_length=self.context_length, logprobs=True, n=True)

    async def stop(self) -> None:
        self._loop.die("the simulated engine has stopped")
        if self._layer is not None:
            self._layer.close()


def _asked_for_error() -> ApiError:
    message = "The simulated engine fails this prompt, as faults.error_rate asks."
    return ApiError(500, message, type="server_error", code="simulated_error")

"""A stand-in for the Python API of TensorRT-LLM 1.2, without a model and without a GPU.

It keeps what the API reference and the sources say: signatures, defaults (32 tokens; seed 0; greedy unless top_k or
top_p is given), which errors come when, cumulative outputs, statistics an iteration at a time. What it writes are
words that a hash of the request chooses. `tests/fakes/site` has it under the package's own names.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import aclosing
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from random import Random
from typing import Any, Literal

from deployments.batching import Request, Scheduler
from deployments.engine import EngineDeadError
from deployments.simulated_loop import BatchLoop
from deployments.timing import TimingModel
from tests.fakes.writing import json_of, words

KEYWORDS = frozenset(
    [
        "max_batch_size",
        "max_num_tokens",
        "max_seq_len",
        "max_input_len",
        "pipeline_parallel_size",
        "kv_cache_config",
        "cuda_graph_config",
        "scheduler_config",
        "enable_chunked_prefill",
        "stream_interval",
        "enable_lora",
        "lora_config",
        "guided_decoding_backend",
        "speculative_config",
        "enable_iter_perf_stats",
        "return_perf_metrics",
        "orchestrator_type",
    ]
)
INTERVAL_S = 0.01  # a token
END: int | None = None  # the token that ends an answer; None: the tokenizer's
KEEPS_END = True  # whether the token that ends an answer is among its tokens


class RequestError(RuntimeError):
    """One request failed."""


class CppExecutorError(RuntimeError):
    """The executor failed, and with it all that it runs."""


@dataclass(slots=True)
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass(slots=True)
class LoRARequest:
    lora_name: str
    lora_int_id: int
    lora_path: str = ""

    def __post_init__(self) -> None:
        if not Path(self.lora_path).exists():
            raise ValueError(f"lora_path ({self.lora_path}) does not exist.")


@dataclass(slots=True, kw_only=True)
class GuidedDecodingParams:
    json: str | dict[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | None = None

    def _validate(self) -> None:
        guides = [self.json, self.regex, self.grammar, self.json_object, self.structural_tag]
        if (count := sum(map(bool, guides))) > 1:
            raise ValueError(f"Only one guide can be used for a request, but got {count}.")


@dataclass(slots=True, kw_only=True)
class SamplingParams:
    end_id: int | None = None
    pad_id: int | None = None
    max_tokens: int = 32
    bad: str | list[str] | None = None
    bad_token_ids: list[int] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    n: int = 1
    best_of: int | None = None
    use_beam_search: bool = False
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    temperature: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    length_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    min_p: float | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    exclude_input_from_output: bool = True
    return_perf_metrics: bool = False
    guided_decoding: GuidedDecodingParams | None = None
    ignore_eos: bool = False
    detokenize: bool = True
    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        self.best_of = self.best_of or self.n
        if self.best_of < self.n:
            raise ValueError(f"best_of ({self.best_of}) cannot be less than n ({self.n})")
        if self.best_of > 1 and self._greedy_decoding:
            raise ValueError("Greedy decoding in the LLM API does not allow multiple returns.")
        if self.temperature is not None and self.temperature < 0:
            raise ValueError(f"require temperature >= 0, got temperature={self.temperature}")
        if self.guided_decoding is not None:
            self.guided_decoding._validate()

    @property
    def _greedy_decoding(self) -> bool:
        return not self.use_beam_search and self.top_k in (None, 1) and self.top_p in (None, 0.0)


@dataclass(slots=True)
class CompletionOutput:
    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    prompt_logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    finish_reason: Literal["stop", "length", "timeout", "cancelled"] | None = None
    stop_reason: int | str | None = None

    @property
    def length(self) -> int:
        return len(self.token_ids)


class RequestOutput:
    """Yields itself, with all that was generated so far."""

    def __init__(self, request_id: int, prompt_token_ids: list[int], params: SamplingParams, llm: "LLM") -> None:
        self.request_id = request_id
        self.prompt: str | None = None
        self.prompt_token_ids = prompt_token_ids
        self.outputs = [CompletionOutput(0)]
        self.cached_tokens = 0
        self._params = params
        self._llm = llm
        self._queue: asyncio.Queue[tuple[list[int], str | None] | Exception] = asyncio.Queue()
        self._done = self._aborted = False

    @property
    def finished(self) -> bool:
        return self._done

    def abort(self) -> None:
        self._llm._abort(self.request_id)
        self._aborted = True

    def aborted(self) -> bool:
        return self._aborted

    def __aiter__(self) -> AsyncIterator["RequestOutput"]:
        return self

    async def __anext__(self) -> "RequestOutput":
        if self._done:
            raise StopAsyncIteration
        update = await self._queue.get()
        if isinstance(update, Exception):
            self._done = True
            raise update
        tokens, reason = update
        output = self.outputs[0]
        output.token_ids.extend(tokens)
        if self._params.logprobs:
            start = len(output.logprobs)
            output.logprobs += [self._logprobs(start + at, token) for at, token in enumerate(tokens)]
        if reason is not None:
            self._done = True
            output.finish_reason = reason  # type: ignore[assignment]
            stops = self._params.stop_token_ids or []
            if reason == "stop" and output.token_ids and output.token_ids[-1] in stops:
                output.stop_reason = output.token_ids[-1]
                output.token_ids = output.token_ids[:-1]
        return self

    def __await__(self) -> Generator[Any, None, "RequestOutput"]:
        return self.aresult().__await__()

    async def aresult(self) -> "RequestOutput":
        while not self._done:
            await anext(self)
        return self

    def _logprobs(self, at: int, token: int) -> dict[int, Logprob]:
        random = Random(f"{self.prompt_token_ids} {at} {token}")
        first = random.uniform(0.5, 0.9)
        found = {token: Logprob(log(first), 1)}
        for rank in range(2, (self._params.logprobs or 0) + 1):
            other = (token + rank * 7) % 1000 + 100
            found.setdefault(other, Logprob(log((1 - first) / 2**rank), rank))
        return found


class LLM:
    """One model; generates on the event loop that asks it."""

    def __init__(
        self,
        model: str | Path,
        tokenizer: Any = None,
        tokenizer_mode: Literal["auto", "slow"] = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        from transformers import AutoTokenizer

        if unknown := kwargs.keys() - KEYWORDS:
            raise ValueError(f"Unknown arguments: {sorted(unknown)}")
        self.args = {"model": str(model), "tensor_parallel_size": tensor_parallel_size, **kwargs}
        self._tokenizer = AutoTokenizer.from_pretrained(tokenizer or model)
        self._ids, self._numbers = itertools.count(1), itertools.count()
        self._scheduler = Scheduler(
            TimingModel(prefill_tokens_per_s=20000, step_s=INTERVAL_S, sequence_s=0, cached_token_s=0, max_num_seqs=32)
        )
        self._loop = BatchLoop(self._scheduler)
        self._started = self._shut = False
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.running: dict[int, RequestOutput] = {}
        self._iterations: asyncio.Queue[str] = asyncio.Queue()
        self.adapters: list[str] = []  # of the requests that there were
        self.calls: list[SamplingParams] = []

    def _check_health(self) -> bool:
        return not self._shut

    @property
    def tokenizer(self) -> Any:
        return self._tokenizer

    def generate_async(
        self,
        inputs: str | list[int] | dict[str, Any],
        sampling_params: SamplingParams | None = None,
        lora_request: LoRARequest | None = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        kv_cache_retention_config: Any = None,
        disaggregated_params: Any = None,
        _postproc_params: Any = None,
        scheduling_params: Any = None,
        cache_salt: str | None = None,
    ) -> RequestOutput:
        if self._shut:
            raise RuntimeError("LLM is shutting down")
        params = sampling_params or SamplingParams(end_id=self._tokenizer.eos_token_id)
        prompt = self._tokens(inputs)
        limit = self.args.get("max_num_tokens") or 8192
        if len(prompt) > limit and not self.args.get("enable_chunked_prefill"):
            raise ValueError(f"The prompt length ({len(prompt)}) should not exceed max_num_tokens ({limit})")
        if lora_request is not None:
            if not self.args.get("enable_lora"):
                raise ValueError("LoRA is not enabled")
            self.adapters.append(lora_request.lora_name)
        if params.guided_decoding is not None and not self.args.get("guided_decoding_backend"):
            raise ValueError("guided_decoding_backend is not set")
        self.calls.append(params)
        output = RequestOutput(next(self._ids), prompt, params, self)
        adapter = lora_request.lora_name if lora_request else ""
        task = asyncio.get_running_loop().create_task(self._generate(output, adapter, streaming))
        self._tasks[output.request_id], self.running[output.request_id] = task, output
        task.add_done_callback(lambda _: self._ended(output.request_id))
        return output

    def _ended(self, request_id: int) -> None:
        del self._tasks[request_id], self.running[request_id]

    def _tokens(self, inputs: str | list[int] | dict[str, Any]) -> list[int]:
        if isinstance(inputs, dict):
            return self._tokens(inputs.get("prompt_token_ids") or inputs["prompt"])
        tokens: list[int] = self._tokenizer.encode(inputs) if isinstance(inputs, str) else inputs
        return tokens

    async def _generate(self, output: RequestOutput, adapter: str, streaming: bool) -> None:
        """What the executor's process does."""
        if not self._started:
            self._started = True
            self._loop.start()
        ids, reason = self._answer(output, adapter)
        request = Request(id=str(output.request_id), prompt=output.prompt_token_ids, max_tokens=len(ids), answer=ids)
        held: list[int] = []
        try:
            async with aclosing(self._loop.tokens(request)) as indices:
                async for index in indices:
                    self._note_iteration()
                    held.append(ids[index])
                    if index == len(ids) - 1:
                        shown = held if KEEPS_END or reason == "length" else held[:-1]
                        output._queue.put_nowait((shown, reason))
                    elif streaming:
                        output._queue.put_nowait((held, None))
                        held = []
        except asyncio.CancelledError:
            output._queue.put_nowait(([], "cancelled"))
        except EngineDeadError as error:
            output._queue.put_nowait(CppExecutorError(str(error)))
        finally:
            self._note_iteration()

    def _answer(self, output: RequestOutput, adapter: str) -> tuple[list[int], str]:
        """The tokens of an answer with its end, and why it ends."""
        params = output._params
        greedy = params._greedy_decoding or params.temperature == 0
        chosen = "greedy" if greedy else f"seed {params.seed or 0} at {params.temperature}"
        key = f"{adapter} {chosen} {params.frequency_penalty} {params.presence_penalty}"
        text = words(key, output.prompt_token_ids)
        if params.guided_decoding is not None:
            text = json_of(params.guided_decoding.json, Random(f"{key} {output.prompt_token_ids}"))
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        ids = [*ids, self._tokenizer.eos_token_id if END is None else END]
        return (ids[: params.max_tokens], "length") if len(ids) > params.max_tokens else (ids, "stop")

    def _note_iteration(self) -> None:
        blocks = self._scheduler.kv_usage
        most = 1024
        self._iterations.put_nowait(
            json.dumps(
                {
                    "iter": next(self._numbers),
                    "numActiveRequests": self._scheduler.running,
                    "maxNumActiveRequests": 32,
                    "numQueuedRequests": self._scheduler.waiting,
                    "inflightBatchingStats": {"numPausedRequests": 0},
                    "kvCacheStats": {
                        "usedNumBlocks": round(blocks * most),
                        "maxNumBlocks": most,
                        "freeNumBlocks": most - round(blocks * most),
                        "cacheHitRate": self._scheduler.hit_rate,
                    },
                }
            )
        )

    async def get_stats_async(self, timeout: float | None = 2) -> AsyncGenerator[dict[str, Any]]:  # noqa: ASYNC109
        while True:
            try:
                async with asyncio.timeout(timeout):
                    iteration = await self._iterations.get()
            except TimeoutError:
                return
            yield json.loads(iteration)

    def _abort(self, request_id: int) -> None:
        if task := self._tasks.get(request_id):
            task.cancel()

    def shutdown(self) -> None:
        self._shut = True

    # Faults, on demand.

    def fail_requests(self, message: str) -> None:
        """Each that runs, by itself."""
        for output in self.running.values():
            output._queue.put_nowait(RequestError(message))

    def end_requests(self, reason: str) -> None:
        """Each that runs ends for a reason of the executor's own: "timeout" or "cancelled"."""
        for output in self.running.values():
            output._queue.put_nowait(([], reason))

    def die(self, message: str) -> None:
        """The executor fails."""
        self._loop.die(message)

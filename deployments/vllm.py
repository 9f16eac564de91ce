"""vLLM as an engine, in process, through vLLM's own OpenAI layer. Imports vLLM only when it starts."""

import asyncio
import json
import os
import re
from argparse import Namespace
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, Self, cast

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from deployments import model_facts, models
from deployments.engine import (
    Capabilities,
    Endpoint,
    Engine,
    EngineDeadError,
    EngineRequest,
    EngineResponse,
    EngineStats,
    PoolModel,
)
from deployments.environments import machine_variant
from deployments.errors import ApiError, from_validation_error, unknown_keys, unsupported
from deployments.openai_layer.schema import ChatRequest, CompletionRequest

# vLLM's default thread binding was seen 30 times slower on a busy machine; without a bound, the CPU cache takes
# most of the memory there is.
CPU_ENVIRONMENT = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": "1"}
# bfloat16 loses to float32 on CPUs without AMX; blocks of 32 let short prompts hit the prefix cache. A prefill is cut
# small, because nothing else happens while a part of it is computed: no token for others, no abort.
CPU_ARGS = {"dtype": "float32", "enforce_eager": True, "block_size": 32, "max_num_batched_tokens": 512}

# Fields of OpenAI's API that ask nothing of an engine.
HARMLESS = frozenset({"metadata", "service_tier", "safety_identifier", "prompt_cache_key"})
OPENAI_FIELDS = frozenset(ChatRequest.model_fields) | frozenset(CompletionRequest.model_fields)
WITHOUT_EFFECT = {**ChatRequest.without_effect, **CompletionRequest.without_effect}
POOL_KEYS = frozenset({"model", "model_tag", "served_model_name", "revision"})  # not for engine_args

_ERROR_EVENT = 'data: {"error"'
_PRINTED_PARAMETER = re.compile(r" \(parameter=.*\)$", re.DOTALL)  # vLLM adds it to an exception that it prints


class VllmArgs(BaseModel):
    """`engine_args` of a vLLM pool: vLLM's own engine and frontend arguments, by their Python names.

    vLLM itself judges them when the pool starts: only its environment knows them all.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    @model_validator(mode="after")
    def _leaves_the_model_to_the_pool(self) -> Self:
        if taken := POOL_KEYS & (self.model_extra or {}).keys():
            raise ValueError(f"'{min(taken)}' is set by the pool's own keys model, revision and served_name")
        return self


class VllmEngine(Engine):
    """An `AsyncLLM`, whose engine core is a child process, under vLLM's OpenAI handlers."""

    name = "vllm"

    def __init__(self, model: PoolModel, args: VllmArgs) -> None:
        self._model = model
        self._args = dict(args.model_extra or {})
        self._engine: Any = None
        self._counts: Any = None
        self._handlers: dict[Endpoint, tuple[type[BaseModel], Any]] = {}
        self._facts = model_facts.of(model)
        self._context_length: int | None = None

    async def start(self) -> None:
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        if machine_variant() == "cpu":
            for name, value in CPU_ENVIRONMENT.items():
                os.environ.setdefault(name, value)
        path = await asyncio.to_thread(models.resolve, self._model.source, self._model.revision)
        await self._start_engine({"model": str(path), "served_model_name": [self._model.served_name]})
        await self.handle(EngineRequest("completions", b'{"prompt": "Hello", "max_tokens": 2}', "warm-up"))

    async def _start_engine(self, where: dict[str, Any]) -> None:
        from starlette.datastructures import State
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.entrypoints.launchers.cli_args import FrontendArgs
        from vllm.entrypoints.openai.api_server import init_app_state
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest as TextCompletionRequest
        from vllm.v1.engine.async_llm import AsyncLLM

        given = where | (CPU_ARGS if machine_variant() == "cpu" else {}) | self._args
        engine_names, frontend_names = _names(AsyncEngineArgs), _names(FrontendArgs)
        if unknown := unknown_keys(given, engine_names | frontend_names, "engine_args key"):
            raise ValueError(" ".join(unknown))
        engine_args = AsyncEngineArgs(**{name: value for name, value in given.items() if name in engine_names})
        frontend_args = FrontendArgs(**{name: value for name, value in given.items() if name in frontend_names})
        self._counts = counts = _make_counter()
        self._engine = AsyncLLM.from_engine_args(engine_args, stat_loggers=[lambda *_: counts])
        self._context_length = self._engine.model_config.max_model_len
        state = State()
        tasks = await self._engine.get_supported_tasks()
        await init_app_state(self._engine, state, Namespace(**vars(frontend_args) | vars(engine_args)), tasks)
        self._handlers = {
            "chat/completions": (ChatCompletionRequest, state.openai_serving_chat.create_chat_completion),
            "completions": (TextCompletionRequest, state.openai_serving_completion.create_completion),
        }

    async def handle(self, request: EngineRequest) -> EngineResponse:
        from vllm.exceptions import VLLMError
        from vllm.v1.engine.exceptions import EngineDeadError as VllmDeadError

        schema, handler = self._handlers[request.endpoint]
        try:
            answer = await handler(parse(schema, request, self._model.served_name), None)
        except VllmDeadError as error:
            raise EngineDeadError(f"vLLM's engine core died: {error}") from error
        except (VLLMError, ValueError, TypeError, OverflowError, NotImplementedError) as error:
            # vLLM's own server leaves these to the exception handlers of its app.
            raise translate(error, request) from error
        if hasattr(answer, "error"):
            raise api_error(answer.error, answer.error.message, request)
        if hasattr(answer, "model_dump_json"):
            return EngineResponse(answer.model_dump_json().encode())
        return EngineResponse(events(answer, request), media_type="text/event-stream")

    async def health(self) -> None:
        try:
            await self._engine.check_health()
        except Exception as error:
            raise EngineDeadError(f"vLLM is not healthy: {error}") from error

    async def stats(self) -> EngineStats:
        # The scheduler reports only after a step: what it hasn't yet reported waits, what has gone doesn't run.
        unfinished: int = self._engine.output_processor.get_num_unfinished_requests()
        running = min(self._counts.running, unfinished)
        return EngineStats(running=running, waiting=unfinished - running)

    def capabilities(self) -> Capabilities:
        facts = self._facts
        parser = self._args.get("enable_auto_tool_choice") and self._args.get("tool_call_parser")
        return Capabilities(
            endpoints=tuple(self._handlers) or ("chat/completions", "completions"),
            context_length=self._context_length or self._args.get("max_model_len", facts.context_length),
            tools=("auto", "forced") if parser else ("forced",),
            json_schema=facts.generates,
            logprobs=facts.generates,
            n=facts.generates,
            parts=("text", "image") if facts.sees else ("text",),
            lora=bool(self._args.get("enable_lora")),
        )

    async def stop(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.to_thread(engine.shutdown)


def parse(schema: type[BaseModel], request: EngineRequest, served_name: str) -> BaseModel:
    """The request as vLLM's own type, under the one model name that this engine knows.

    Raises:
        ApiError: 400, also for a field that vLLM would ignore.
    """
    try:
        parsed = schema.model_validate_json(request.body)
    except ValidationError as error:
        raise from_validation_error(error, schema.model_fields) from None
    extra = parsed.model_extra or {}
    for name in sorted(extra.keys() - HARMLESS):
        if extra[name] in WITHOUT_EFFECT.get(name, ()):
            continue
        if name in OPENAI_FIELDS:
            raise unsupported(name, "vllm")
        raise ApiError(400, unknown_keys([name], schema.model_fields)[0], param=name, code="unknown_parameter")
    return parsed.model_copy(update={"model": served_name, "request_id": request.request_id})


def translate(error: Exception, request: EngineRequest) -> ApiError:
    """The answer that vLLM's own server would give to `error`."""
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

    if isinstance(error, ApiError):
        return error
    # An exception's own message, without the parameter and value that vLLM adds when it is printed.
    message = str(error.args[0]) if error.args else str(error)
    return api_error(create_error_response(error).error, message, request)


def api_error(error: Any, message: str, request: EngineRequest) -> ApiError:
    """vLLM's error as ours: it writes the HTTP status into `code`."""
    status, code = int(error.code), None
    if "maximum context length" in message or "max_model_len" in message:
        code = "context_length_exceeded"
    param = _blamed(error.param, message, request) if status < 500 else None
    kind = "invalid_request_error" if status < 500 else "server_error"
    return ApiError(status, message, type=kind, param=param, code=code)


def _blamed(param: str | None, message: str, request: EngineRequest) -> str:
    """The request's field at fault. vLLM often names none, or one of its own (`input_tokens`): then it is the field
    that its message begins with, else the prompt."""
    first_word = message.partition(" ")[0].strip("'`")
    prompt = "messages" if request.endpoint == "chat/completions" else "prompt"
    candidates = (param, first_word, "tools" if "tool" in message else None)
    return next((name for name in candidates if name in OPENAI_FIELDS), prompt)


async def events(stream: AsyncIterator[str], request: EngineRequest) -> AsyncGenerator[bytes]:
    """vLLM's events, with its errors in their place.

    vLLM finds some faults of a streamed request only after its server has answered 200, and writes them as the first
    event: here they are raised, for nothing has been sent yet. After a later error its `[DONE]` is dropped: a client
    would take a broken answer for a whole one.
    """
    sent = broken = False
    async with aclosing(cast("AsyncGenerator[str]", stream)) as generator:
        async for event in generator:
            if event.startswith(_ERROR_EVENT):
                if not sent:
                    error = SimpleNamespace(**json.loads(event.removeprefix("data: "))["error"])
                    raise api_error(error, _PRINTED_PARAMETER.sub("", error.message), request)
                broken = True
            if not (broken and event.startswith("data: [DONE]")):
                yield event.encode()
                sent = True


def _names(dataclass: Any) -> set[str]:
    return {field.name for field in fields(dataclass)}


def _make_counter() -> Any:
    """A vLLM stat logger that keeps the scheduler's last count."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class Counter(StatLoggerBase):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            self.running = 0

        def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
            if scheduler_stats is not None:
                self.running = scheduler_stats.num_running_reqs

        def log_engine_initialized(self) -> None:
            pass

    return Counter()

"""What of SGLang's OpenAI layer its adapter uses. Imported only inside SGLang's environment."""

from collections.abc import AsyncIterator, Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any, Self, cast

from sglang.srt.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from sglang.srt.entrypoints.anthropic.serving import AnthropicServing
from sglang.srt.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    ResponsesRequest,
    ScoringRequest,
    TokenizeRequest,
    V1RerankReqInput,
)
from sglang.srt.entrypoints.openai.serving_completions import OpenAIServingCompletion
from sglang.srt.entrypoints.openai.serving_embedding import OpenAIServingEmbedding
from sglang.srt.entrypoints.openai.serving_rerank import OpenAIServingRerank
from sglang.srt.entrypoints.openai.serving_responses import OpenAIServingResponses
from sglang.srt.entrypoints.openai.serving_score import OpenAIServingScore
from sglang.srt.entrypoints.openai.serving_tokenize import OpenAIServingDetokenize, OpenAIServingTokenize
from starlette.responses import JSONResponse, StreamingResponse

from deployments.bounds import check_tokens
from deployments.engine import Endpoint, EngineStats
from deployments.own_layer import Handler
from deployments.sglang_answers import has_broken_stops, put_right, with_offsets


def names(server_args: Any) -> set[str]:
    """The arguments that SGLang takes."""
    if is_dataclass(server_args):
        return {field.name for field in fields(server_args)}
    return {name for name in server_args.__struct_fields__ if not name.startswith("_")}


def handlers(engine: Any, *, generates: bool) -> dict[Endpoint, Handler]:
    """The endpoints of a model that generates, or of one that embeds. Token ids are checked: a scheduler dies of one
    that its model hasn't."""
    found = _handlers(engine, generates=generates)
    vocabulary = engine.tokenizer_manager.model_config.vocab_size
    return {endpoint: replace(handler, call=_checking(handler.call, vocabulary)) for endpoint, handler in found.items()}


def _checking(call: Any, vocabulary: int) -> Any:
    async def ask(request: Any) -> Any:
        check_tokens(request, vocabulary)
        return await call(request)

    return ask


def _handlers(engine: Any, *, generates: bool) -> dict[Endpoint, Handler]:
    manager, templates = engine.tokenizer_manager, engine.template_manager
    found: dict[Endpoint, Handler] = {
        "tokenize": _handler(TokenizeRequest, OpenAIServingTokenize(manager, templates)),
        "detokenize": Handler(DetokenizeRequest, _detokenizing(OpenAIServingDetokenize(manager))),
    }
    if not generates:
        embeddings = _handler(EmbeddingRequest, OpenAIServingEmbedding(manager, templates))
        rerank = _handler(V1RerankReqInput, OpenAIServingRerank(manager, templates))
        return {"embeddings": embeddings, "rerank": rerank, **found}
    chat = manager.serving_chat_class(manager, templates)
    responses = OpenAIServingResponses(manager, templates, enable_prompt_tokens_details=True)
    seed = () if manager.server_args.enable_deterministic_inference else ("seed",)
    ignored = (*seed, "parallel_tool_calls")  # the model may make several calls all the same
    generating: dict[Endpoint, Handler] = {
        "chat/completions": _handler(ChatCompletionRequest, chat, ignored),
        "completions": _handler(
            CompletionRequest, OpenAIServingCompletion(manager, templates), (*seed, "best_of", "suffix")
        ),
        "responses": _handler(WholeResponsesRequest, responses, method="create_responses"),
        "messages": _handler(AnthropicMessagesRequest, AnthropicServing(chat), method="handle_messages"),
        "score": _handler(ScoringRequest, OpenAIServingScore(manager)),
    }
    return generating | found


class WholeResponsesRequest(ResponsesRequest):  # type: ignore[misc,unused-ignore]
    """SGLang generates two tokens fewer than `max_output_tokens` asks for."""

    def to_sampling_params(self, *args: Any, **kwargs: Any) -> Any:
        params = super().to_sampling_params(*args, **kwargs)
        asked = self.max_output_tokens
        if asked is not None and params.get("max_new_tokens") == asked - 2:  # else the context has the say
            params["max_new_tokens"] = asked
        return params


def _handler(schema: Any, serving: Any, without_effect: Iterable[str] = (), method: str = "handle_request") -> Handler:
    call = getattr(serving, method)

    async def ask(request: Any) -> Any:
        # No HTTP request: ours ends by cancelling.
        return _put_right(await call(_with_the_named_tool_only(request), None), request)

    return Handler(schema, ask, tuple(without_effect))


def _with_the_named_tool_only(request: Any) -> Any:
    """Some of SGLang's tool parsers let the model call any of the tools where `tool_choice` names one."""
    named = getattr(getattr(request, "tool_choice", None), "function", None)
    if found := [tool for tool in request.tools or () if tool.function.name == named.name] if named else None:
        return request.model_copy(update={"tools": found})
    return request


def _detokenizing(serving: Any) -> Any:
    async def ask(request: Any) -> Any:
        answer = await serving.handle_request(request, None)
        return JSONResponse({"prompt": answer.text}) if hasattr(answer, "text") else answer  # as the others name it

    return ask


def _put_right(answer: Any, request: Any) -> Any:
    stop = getattr(request, "stop", None) or []
    stops = [stop] if isinstance(stop, str) else stop
    offsets = isinstance(request, CompletionRequest) and request.logprobs is not None
    if isinstance(answer, StreamingResponse):
        if offsets or has_broken_stops(stops) or getattr(request, "tools", None):
            return put_right(cast("AsyncIterator[str]", answer.body_iterator), stops)
    elif offsets and hasattr(answer, "choices"):
        document = answer.model_dump(mode="json")
        return JSONResponse({**document, "choices": [with_offsets(choice) for choice in document["choices"]]})
    return answer


class Counter:
    """Sums over finished requests, in the place of SGLang's own metrics collector."""

    labels: dict[str, str] = {}

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = 0

    @classmethod
    def attach_to(cls, manager: Any) -> Self:
        counter = cls(manager)
        manager.metrics_collector, manager.enable_metrics = counter, True
        return counter

    def observe_one_finished_request(
        self, _: Any, prompt: int, generated: int, cached: int, *__: Any, **___: Any
    ) -> None:
        self.prompt_tokens += prompt
        self.generated_tokens += generated
        self.cached_tokens += cached

    def observe_time_to_first_token(self, *_: Any, **__: Any) -> None: ...

    def observe_inter_token_latency(self, *_: Any, **__: Any) -> None: ...

    def observe_one_aborted_request(self, *_: Any, **__: Any) -> None: ...

    async def stats(self) -> EngineStats:
        # The scheduler reports only after a step: what it hasn't yet reported waits, what has gone doesn't run.
        loads = await self._manager.get_loads()
        unfinished = len(self._manager.rid_to_state)
        running = min(sum(load.num_running_reqs for load in loads), unfinished)
        return EngineStats(
            running=running,
            waiting=unfinished - running,
            kv_cache_usage=max((load.token_usage for load in loads), default=None),
            prefix_hit_rate=self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
        )

"""What of SGLang's OpenAI layer its adapter uses. Imported only inside SGLang's environment."""

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any, Self

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

from deployments.engine import Endpoint, EngineStats
from deployments.own_layer import Handler


def names(server_args: Any) -> set[str]:
    """The arguments that SGLang takes."""
    if is_dataclass(server_args):
        return {field.name for field in fields(server_args)}
    return {name for name in server_args.__struct_fields__ if not name.startswith("_")}


def handlers(engine: Any, *, generates: bool) -> dict[Endpoint, Handler]:
    """The endpoints of a model that generates, or of one that embeds."""
    manager, templates = engine.tokenizer_manager, engine.template_manager
    found: dict[Endpoint, Handler] = {
        "tokenize": _handler(TokenizeRequest, OpenAIServingTokenize(manager, templates)),
        "detokenize": _handler(DetokenizeRequest, OpenAIServingDetokenize(manager)),
    }
    if not generates:
        embeddings = _handler(EmbeddingRequest, OpenAIServingEmbedding(manager, templates))
        rerank = _handler(V1RerankReqInput, OpenAIServingRerank(manager, templates))
        return {"embeddings": embeddings, "rerank": rerank, **found}
    chat = manager.serving_chat_class(manager, templates)
    responses = OpenAIServingResponses(manager, templates, enable_prompt_tokens_details=True)
    seed = () if manager.server_args.enable_deterministic_inference else ("seed",)
    generating: dict[Endpoint, Handler] = {
        "chat/completions": _handler(ChatCompletionRequest, chat, seed),
        "completions": _handler(
            CompletionRequest, OpenAIServingCompletion(manager, templates), (*seed, "best_of", "suffix")
        ),
        "responses": _handler(ResponsesRequest, responses, method="create_responses"),
        "messages": _handler(AnthropicMessagesRequest, AnthropicServing(chat), method="handle_messages"),
        "score": _handler(ScoringRequest, OpenAIServingScore(manager)),
    }
    return generating | found


def _handler(schema: Any, serving: Any, without_effect: Iterable[str] = (), method: str = "handle_request") -> Handler:
    call = getattr(serving, method)

    async def ask(request: Any) -> Any:
        return await call(request, None)  # no HTTP request: ours ends by cancelling

    return Handler(schema, ask, tuple(without_effect))


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

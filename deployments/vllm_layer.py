"""What of vLLM's OpenAI layer its adapter uses. Imported only inside vLLM's environment."""

from typing import Any

from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest
from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, ScoreRequest
from vllm.entrypoints.serve.tokenize.protocol import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeCompletionRequest,
    TokenizeRequest,
)
from vllm.v1.metrics.loggers import StatLoggerBase

from deployments.bounds import check_tokens
from deployments.engine import Endpoint, EngineStats
from deployments.openai_layer.layer import fit
from deployments.own_layer import Handler

TEMPLATE_TOKENS = 1024  # more than a chat template adds to its messages


def handlers(state: Any, model_config: Any) -> dict[Endpoint, Handler]:
    """The endpoints that this model has, from the state that vLLM's server would keep."""
    vocabulary: int = model_config.get_vocab_size()
    fitting = _Fitting(state.serving_tokenization, model_config.max_model_len)
    found: dict[Endpoint, tuple[Any, str, str]] = {
        "chat/completions": (ChatCompletionRequest, "openai_serving_chat", "create_chat_completion"),
        "completions": (CompletionRequest, "openai_serving_completion", "create_completion"),
        "responses": (ResponsesRequest, "openai_serving_responses", "create_responses"),
        "messages": (AnthropicMessagesRequest, "anthropic_serving_messages", "create_messages"),
        "embeddings": (EmbeddingRequest, "serving_embedding", "__call__"),
        "score": (ScoreRequest, "serving_scores", "__call__"),
        "rerank": (RerankRequest, "serving_scores", "__call__"),
        "tokenize": (TokenizeRequest, "serving_tokenization", "create_tokenize"),
        "detokenize": (DetokenizeRequest, "serving_tokenization", "create_detokenize"),
    }
    return {
        endpoint: Handler(schema, _asking(getattr(serving, method), fitting, vocabulary))
        for endpoint, (schema, name, method) in found.items()
        if (serving := getattr(state, name, None)) is not None
    }


def _asking(method: Any, fitting: "_Fitting", vocabulary: int) -> Any:
    async def ask(request: Any) -> Any:
        check_tokens(request, vocabulary)
        await fitting.check(request)
        return await method(_several_greedy(request), None)  # no HTTP request: ours ends by cancelling

    return ask


class _Fitting:
    """vLLM cuts `max_tokens` down to what the prompt leaves of the context; OpenAI's API refuses it, and so do we."""

    def __init__(self, tokenization: Any, context_length: int) -> None:
        self._tokenization = tokenization
        self._context_length = context_length

    async def check(self, request: Any) -> None:
        """Raises `ApiError`, 400. A prompt is only counted where its bytes, and a template's, might not fit."""
        prompt: TokenizeChatRequest | TokenizeCompletionRequest
        if isinstance(request, ChatCompletionRequest):
            wanted, param = request.max_completion_tokens or request.max_tokens, "messages"
            size = len(f"{request.messages}{request.tools}".encode()) + TEMPLATE_TOKENS
        elif isinstance(request, CompletionRequest) and isinstance(request.prompt, str):
            wanted, param, size = request.max_tokens, "prompt", len(request.prompt.encode())
        else:
            return
        if not wanted or wanted + size <= self._context_length:
            return
        if isinstance(request, ChatCompletionRequest):
            kwargs = request.chat_template_kwargs
            prompt = TokenizeChatRequest(messages=request.messages, tools=request.tools, chat_template_kwargs=kwargs)
        else:
            prompt = TokenizeCompletionRequest(prompt=request.prompt)
        answer = await self._tokenization.create_tokenize(prompt, None)
        if hasattr(answer, "count") and answer.count < self._context_length:  # vLLM refuses a longer one itself
            fit(answer.count, wanted, self._context_length, param)


def _several_greedy(request: Any) -> Any:
    """vLLM refuses more than one choice at temperature 0, which OpenAI's API allows: sampling among one is the same."""
    if (getattr(request, "n", None) or 1) > 1 and request.temperature == 0:
        return request.model_copy(update={"temperature": 1.0, "top_k": 1})
    return request


class Counter(StatLoggerBase):  # type: ignore[misc,unused-ignore]
    """A vLLM stat logger that keeps the scheduler's last counts, and sums since the start."""

    def __init__(self) -> None:
        self.running = 0
        self.kv_cache_usage = 0.0
        self.looked_up = self.found = self.prompt_tokens = self.generated_tokens = 0

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        if scheduler_stats is not None:
            self.running = scheduler_stats.num_running_reqs
            self.kv_cache_usage = scheduler_stats.kv_cache_usage
            self.looked_up += scheduler_stats.prefix_cache_stats.queries
            self.found += scheduler_stats.prefix_cache_stats.hits
        if iteration_stats is not None:
            self.prompt_tokens += iteration_stats.num_prompt_tokens
            self.generated_tokens += iteration_stats.num_generation_tokens

    def log_engine_initialized(self) -> None:
        pass

    def stats(self, unfinished: int) -> EngineStats:
        running = min(self.running, unfinished)
        return EngineStats(
            running=running,
            waiting=unfinished - running,
            kv_cache_usage=self.kv_cache_usage,
            prefix_hit_rate=self.found / self.looked_up if self.looked_up else None,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
        )

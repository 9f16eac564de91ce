"""The layer itself: an OpenAI request in, wire-ready bytes out, tokens from an engine between."""

from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import replace
from typing import cast

from deployments.engine import Endpoint, EngineRequest, EngineResponse
from deployments.errors import ApiError
from deployments.openai_layer.answer import Plan, respond
from deployments.openai_layer.choice import Delta, Usage, deltas
from deployments.openai_layer.documents import ChatDocuments, CompletionDocuments
from deployments.openai_layer.prompts import Prompts
from deployments.openai_layer.schema import ChatRequest, CompletionRequest
from deployments.openai_layer.text import Detokenizer, token_bytes
from deployments.openai_layer.tokenize import detokenize, tokenize
from deployments.openai_layer.tokens import Finish, Sampling, Token, TokenEngine


class OpenAILayer:
    """Serves OpenAI's chat and completions, and tokenize and detokenize, over a `TokenEngine`."""

    ENDPOINTS: tuple[Endpoint, ...] = ("chat/completions", "completions", "tokenize", "detokenize")

    def __init__(self, engine: TokenEngine, served_name: str, honours: Collection[str] = ()) -> None:
        """`honours`: fields, of those that `schema` calls optional, that the engine honours."""
        self._engine = engine
        self._served_name = served_name
        self._honours = honours
        self._prompts = Prompts(engine)

    def close(self) -> None:
        self._prompts.close()

    async def handle(self, request: EngineRequest) -> EngineResponse:
        """Answer a request.

        Raises:
            ApiError: 400, for a request that can't be honoured.
            EngineDeadError: the engine died before the whole of a non-streamed answer.
        """
        parsed: ChatRequest | CompletionRequest
        match request.endpoint:
            case "tokenize":
                return await tokenize(request, self._prompts, self._engine.context_length)
            case "detokenize":
                return await detokenize(request, self._prompts)
            case "chat/completions":
                parsed = ChatRequest.parse(request.body, self._engine.name, self._honours)
                plan = await self._plan_chat(parsed, request)
            case _:
                parsed = CompletionRequest.parse(request.body, self._engine.name, self._honours)
                plan = await self._plan_completion(parsed, request)
        return await respond(plan, parsed)

    async def _plan_chat(self, request: ChatRequest, asked: EngineRequest) -> Plan:
        prompt = await self._prompts.render(request.messages)
        top_logprobs = (request.top_logprobs or 0) if request.logprobs else None
        max_tokens = request.max_completion_tokens or request.max_tokens
        [sampling] = self._sampling(request, asked.adapter, [prompt], max_tokens, top_logprobs)
        documents = ChatDocuments(
            f"chatcmpl-{asked.request_id}", self._name(asked), self._spell, bool(request.logprobs)
        )
        usage = Usage(len(prompt))
        choices = [
            self._choice(prompt, sampling.for_choice(index), request.stop, usage) for index in range(request.n or 1)
        ]
        return Plan(choices, usage, documents)

    def _name(self, asked: EngineRequest) -> str:
        return asked.adapter or self._served_name

    async def _plan_completion(self, request: CompletionRequest, asked: EngineRequest) -> Plan:
        prompts = [await self._prompts.encode(prompt) for prompt in request.prompt]
        samplings = self._sampling(request, asked.adapter, prompts, request.max_tokens or 16, request.logprobs)
        count = request.n or 1
        documents = CompletionDocuments(
            f"cmpl-{asked.request_id}",
            self._name(asked),
            self._spell,
            request.logprobs is not None,
            echoes=[self._prompts.text(prompt) for prompt in request.prompt for _ in range(count)]
            if request.echo
            else (),
        )
        usage = Usage(sum(map(len, prompts)))
        choices = [
            self._choice(prompt, sampling.for_choice(index), request.stop, usage)
            for prompt, sampling in zip(prompts, samplings, strict=True)
            for index in range(count)
        ]
        return Plan(choices, usage, documents)

    def _spell(self, token_id: int) -> bytes:
        return token_bytes(self._engine.tokenizer, token_id)

    def _sampling(
        self,
        request: ChatRequest | CompletionRequest,
        adapter: str | None,
        prompts: Sequence[list[int]],
        max_tokens: int | None,
        logprobs: int | None,
    ) -> list[Sampling]:
        """A sampling for each prompt, which differ where `max_tokens` is what each prompt leaves of the context."""
        sampling = Sampling(
            max_tokens=1,
            temperature=1.0 if request.temperature is None else request.temperature,
            top_p=1.0 if request.top_p is None else request.top_p,
            seed=request.seed,
            logprobs=logprobs,
            frequency_penalty=request.frequency_penalty or 0.0,
            presence_penalty=request.presence_penalty or 0.0,
            guide=request.guide,
            adapter=adapter,
        )
        limit = self._engine.context_length
        return [
            replace(sampling, max_tokens=fit(len(prompt), max_tokens, limit, request.prompt_field))
            for prompt in prompts
        ]

    def _choice(
        self, prompt: list[int], sampling: Sampling, stops: Sequence[str], usage: Usage
    ) -> AsyncGenerator[Delta]:
        tokens = cast("AsyncGenerator[Token | Finish]", self._engine.generate(prompt, sampling))
        return deltas(tokens, stops, usage, self._engine.eos_token_ids, Detokenizer(self._engine.tokenizer))


def fit(prompt_tokens: int, max_tokens: int | None, context_length: int, param: str) -> int:
    """How many tokens may be generated: `max_tokens`, or what the prompt leaves of the context.

    Raises:
        ApiError: 400 with both numbers, when it doesn't fit.
    """
    if prompt_tokens == 0:
        raise ApiError(400, f"'{param}' has no tokens.", param=param, code="invalid_value")
    wanted = prompt_tokens + (max_tokens or 1)
    if wanted <= context_length:
        return max_tokens or context_length - prompt_tokens
    message = f"This model's maximum context length is {context_length} tokens, but "
    if prompt_tokens >= context_length:
        message += f"'{param}' has {prompt_tokens} tokens."
    else:
        message += f"{wanted} were requested: {prompt_tokens} in '{param}' and {max_tokens} to generate."
    raise ApiError(400, message, param=param, code="context_length_exceeded")

"""OpenAI's requests as Text Generation Inference takes them. Pure functions.

Source: TGI 3.3's published API, and what its servers were seen to do. What it would ignore is refused here.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from pydantic import Field

from deployments.errors import ApiError
from deployments.openai_layer.schema import ChatRequest, CompletionRequest, Content, Document

# Not `presence_penalty`: on TGI's chats it becomes a repetition penalty, of 2 more than was asked for.
CHAT_HONOURS = ("frequency_penalty", "response_format", "tools", "tool_choice")
COMPLETION_HONOURS = ("frequency_penalty",)
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's; TGI's own is what the context leaves


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server says of itself at `/info`, and refuses beyond."""

    max_total_tokens: int | None = None  # of prompt and answer
    max_stop_sequences: int = 4
    max_concurrent_requests: int | None = None
    max_client_batch_size: int = 4  # prompts of one request


@dataclass(frozen=True, slots=True)
class Terms:
    """What requests are made by."""

    engine: str
    limits: Limits
    adapter: str | None = None  # the servers' LoRA adapter to ask for

    @property
    def model(self) -> str:
        """Any other name than TGI's own is an adapter's."""
        return self.adapter or "tgi"


class TgiMessage(Document):
    """A message; calls of tools and their answers among them."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None

    @property
    def says_something(self) -> bool:
        return self.content is not None or bool(self.tool_calls)

    def document(self) -> dict[str, Any]:
        """`developer` is OpenAI's newer name of `system`, which templates don't know."""
        said = self.model_dump(exclude_none=True)
        return {**said, "role": "system"} if self.role == "developer" else said


class TgiFunction(Document):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None  # tools are always held to their parameters


class TgiTool(Document):
    type: Literal["function"]
    function: TgiFunction

    def document(self) -> dict[str, Any]:
        """What OpenAI calls `parameters` is published as `arguments`."""
        function = self.function
        told = {"name": function.name, "description": function.description}
        parameters = function.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": {**_without_nulls(told), "arguments": parameters}}


class TgiChoice(Document):
    name: str


class TgiToolChoice(Document):
    type: Literal["function"]
    function: TgiChoice


class TgiChatRequest(ChatRequest):
    messages: list[TgiMessage] = Field(min_length=1)  # type: ignore[assignment]
    tools: list[TgiTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | TgiToolChoice | None = None


def chat(body: bytes, terms: Terms) -> dict[str, Any]:
    """The body for `/v1/chat/completions`.

    Raises:
        ApiError: 400, with the field at fault.
    """
    request = TgiChatRequest.parse(body, terms.engine, CHAT_HONOURS)
    _refuse_many_stops(request, terms)
    tools = [] if request.tool_choice == "none" else [tool.document() for tool in request.tools or ()]
    if tools and request.guide is not None:
        message = f"The {terms.engine} engine takes 'response_format' or 'tools', not both."
        raise ApiError(400, message, param="response_format", code="unsupported_parameter")
    return _without_nulls(
        {
            **_common(request, terms),
            "messages": [message.document() for message in request.messages],
            "max_tokens": request.max_completion_tokens or request.max_tokens,
            "logprobs": request.logprobs or None,
            "top_logprobs": request.top_logprobs if request.logprobs else None,
            "response_format": _grammar(request),
            "tools": tools or None,
            "tool_choice": _tool_choice(request) if tools else None,
        }
    )


def _tool_choice(request: TgiChatRequest) -> Any:
    choice = request.tool_choice
    if not isinstance(choice, TgiToolChoice):
        return choice
    if choice.function.name not in [tool.function.name for tool in request.tools or ()]:
        message = f"'tool_choice' names '{choice.function.name}', which isn't among 'tools'."
        raise ApiError(400, message, param="tool_choice", code="invalid_value")
    return choice.model_dump()


def read_completion(body: bytes, terms: Terms) -> CompletionRequest:
    """A completion that the servers can honour, on one route or the other.

    Raises:
        ApiError: 400, with the field at fault.
    """
    request = CompletionRequest.parse(body, terms.engine, COMPLETION_HONOURS)
    if not all(isinstance(prompt, str) for prompt in request.prompt):
        message = f"The {terms.engine} engine takes prompts as text, not as token ids."
        raise ApiError(400, message, param="prompt", code="unsupported_parameter")
    _within(len(request.prompt), terms.limits.max_client_batch_size, "prompts", "prompt", terms)
    _refuse_many_stops(request, terms)
    if not all(request.prompt):
        raise ApiError(400, "'prompt' has no tokens.", param="prompt", code="invalid_value")
    return request


def needs_native(request: CompletionRequest) -> bool:
    """Whether TGI's OpenAI route would ignore what the request asks for."""
    return request.logprobs is not None or bool(request.echo)


def completion(request: CompletionRequest, terms: Terms) -> dict[str, Any]:
    """The body for `/v1/completions`."""
    return _without_nulls(
        {
            **_common(request, terms),
            "prompt": request.prompt,
            "max_tokens": request.max_tokens or DEFAULT_COMPLETION_TOKENS,
        }
    )


def native(request: CompletionRequest, max_tokens: int, terms: Terms) -> dict[str, Any]:
    """The `parameters` for `/generate` and `/generate_stream`, of one prompt."""
    return _without_nulls(
        {
            "max_new_tokens": max_tokens,
            "do_sample": request.temperature != 0,
            "temperature": request.temperature or None,  # 0 is refused here
            "top_p": _top_p(request),
            "seed": None if request.seed is None else request.seed % 2**64 or 2**63,  # published as over 0
            "stop": request.stop or None,
            "frequency_penalty": request.frequency_penalty or None,
            "top_n_tokens": request.logprobs or None,
            "return_full_text": False,
            "adapter_id": terms.adapter,
        }
    )


def _common(request: ChatRequest | CompletionRequest, terms: Terms) -> dict[str, Any]:
    return {
        "model": terms.model,
        "temperature": request.temperature,  # 0 is greedy on these routes
        "top_p": _top_p(request),
        "seed": None if request.seed is None else request.seed % 2**64,
        "stop": request.stop or None,  # a list, never a string
        "frequency_penalty": request.frequency_penalty or None,
        "stream": request.stream or None,
        "stream_options": {"include_usage": True} if request.include_usage else None,
    }


def _top_p(request: ChatRequest | CompletionRequest) -> float | None:
    """1 is refused."""
    return request.top_p if request.top_p is not None and request.top_p < 1 else None


def _grammar(request: ChatRequest) -> dict[str, Any] | None:
    guide = request.guide
    if guide is None:
        return None
    return {"type": "json", "value": json.loads(guide.schema) if guide.schema else {"type": "object"}}


def _refuse_many_stops(request: ChatRequest | CompletionRequest, terms: Terms) -> None:
    _within(len(request.stop), terms.limits.max_stop_sequences, "stop strings", "stop", terms)


def _within(count: int, most: int, what: str, param: str, terms: Terms) -> None:
    if count > most:
        message = f"The {terms.engine} engine takes at most {most} {what}, not {count}."
        raise ApiError(400, message, param=param, code="invalid_value")


def _without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def limits_of(info: dict[str, Any]) -> Limits:
    """What a server says of itself at `/info`; what it leaves out has its usual value."""
    told = {field.name: info[field.name] for field in fields(Limits) if isinstance(info.get(field.name), int)}
    return Limits(**told)


def least(told: Sequence[Limits]) -> Limits:
    """What every one of these servers takes."""

    def smallest(name: str) -> Any:
        values = [value for limits in told if (value := getattr(limits, name)) is not None]
        return min(values, default=getattr(Limits(), name))

    return Limits(**{field.name: smallest(field.name) for field in fields(Limits)})

"""OpenAI's requests as Text Generation Inference takes them. Pure functions.

Source: TGI 3.3's published API, and what its servers were seen to do. What it would ignore is refused here.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from pydantic import Field

from deployments.errors import ApiError
from deployments.openai_layer.schema import ChatRequest, CompletionRequest, Content, Document

CHAT_HONOURS = ("frequency_penalty", "presence_penalty", "response_format", "tools", "tool_choice")
COMPLETION_HONOURS = ("frequency_penalty",)
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's; TGI's own is what the context leaves


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server says of itself at `/info`, and refuses beyond."""

    max_total_tokens: int | None = None  # of prompt and answer
    max_stop_sequences: int = 4
    max_concurrent_requests: int | None = None
    max_client_batch_size: int = 4  # prompts of one request


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


class TgiCompletionRequest(CompletionRequest):
    without_effect: ClassVar[Any] = {
        **CompletionRequest.without_effect,
        "logprobs": (None,),
        "echo": (None, False),
    }


def chat(body: bytes, engine: str, limits: Limits) -> dict[str, Any]:
    """The body for `/v1/chat/completions`.

    Raises:
        ApiError: 400, with the field at fault.
    """
    request = TgiChatRequest.parse(body, engine, CHAT_HONOURS)
    tools = [] if request.tool_choice == "none" else [tool.document() for tool in request.tools or ()]
    if tools and request.guide is not None:
        message = f"The {engine} engine takes 'response_format' or 'tools', not both."
        raise ApiError(400, message, param="response_format", code="unsupported_parameter")
    return _without_nulls(
        {
            **_common(request, engine, limits),
            "messages": [message.document() for message in request.messages],
            "max_tokens": request.max_completion_tokens or request.max_tokens,
            "presence_penalty": request.presence_penalty or None,
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


def completion(body: bytes, engine: str, limits: Limits) -> dict[str, Any]:
    """The body for `/v1/completions`.

    Raises:
        ApiError: 400, with the field at fault.
    """
    request = TgiCompletionRequest.parse(body, engine, COMPLETION_HONOURS)
    if not all(isinstance(prompt, str) for prompt in request.prompt):
        message = f"The {engine} engine takes prompts as text, not as token ids."
        raise ApiError(400, message, param="prompt", code="unsupported_parameter")
    _within(len(request.prompt), limits.max_client_batch_size, "prompts", "prompt", engine)
    if not all(request.prompt):
        raise ApiError(400, "'prompt' has no tokens.", param="prompt", code="invalid_value")
    return _without_nulls(
        {
            **_common(request, engine, limits),
            "prompt": request.prompt,
            "max_tokens": request.max_tokens or DEFAULT_COMPLETION_TOKENS,
        }
    )


def _common(request: ChatRequest | CompletionRequest, engine: str, limits: Limits) -> dict[str, Any]:
    _within(len(request.stop), limits.max_stop_sequences, "stop strings", "stop", engine)
    return {
        "model": "tgi",  # any other name would be a LoRA adapter's
        "temperature": request.temperature,  # 0 is greedy on these routes, though not on the native ones
        "top_p": request.top_p if request.top_p is not None and request.top_p < 1 else None,  # 1 is refused
        "seed": None if request.seed is None else request.seed % 2**64,
        "stop": request.stop or None,  # a list, never a string
        "frequency_penalty": request.frequency_penalty or None,
        "stream": request.stream or None,
        "stream_options": {"include_usage": True} if request.include_usage else None,
    }


def _grammar(request: ChatRequest) -> dict[str, Any] | None:
    guide = request.guide
    if guide is None:
        return None
    return {"type": "json", "value": json.loads(guide.schema) if guide.schema else {"type": "object"}}


def _within(count: int, most: int, what: str, param: str, engine: str) -> None:
    if count > most:
        message = f"The {engine} engine takes at most {most} {what}, not {count}."
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

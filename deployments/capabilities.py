"""What a pool can honour, and the refusal of a request that asks for more. Pure functions."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError

from deployments.engine import Capabilities, EngineRequest, Part
from deployments.errors import ApiError, unsupported

# How OpenAI's content parts, and Anthropic's, name what they hold.
PARTS: dict[str, Part] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "text",
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "input_audio": "audio",
    "audio_url": "audio",
    "video_url": "video",
    "file": "file",
    "input_file": "file",
}
# Fields whose value asks for nothing, whatever the engine is.
NOTHING: tuple[Any, ...] = (None, False, [], {}, "none")


class _Asked(BaseModel):
    """The fields that engines differ in. Their types are for the engine to judge."""

    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    response_format: Any = None
    logprobs: Any = None
    n: Any = None
    messages: Any = None


def refuse_beyond(can: Capabilities, request: EngineRequest, engine: str) -> None:
    """Return if `engine` has the endpoint and honours each field that the request sets.

    Raises:
        ApiError: 400, with the field and the engine named.
    """
    if request.endpoint not in can.endpoints:
        served = ", ".join(can.endpoints)
        message = f"The {engine} engine doesn't serve '{request.endpoint}' for this model; it serves {served}."
        raise ApiError(400, message, param="model", code="unsupported_endpoint")
    try:
        asked = _Asked.model_validate_json(request.body)
    except ValidationError:
        return  # the engine says better what is wrong with it
    for param in _beyond(can, asked):
        raise unsupported(param, engine)


def _beyond(can: Capabilities, asked: _Asked) -> Iterator[str]:
    if asked.tools not in NOTHING and asked.tool_choice != "none":
        kind = "auto" if asked.tool_choice in (None, "auto") else "forced"
        if kind not in can.tools:
            yield "tool_choice" if can.tools and asked.tool_choice is not None else "tools"
    if asked.functions not in NOTHING and not can.tools:
        yield "functions"
    form = asked.response_format.get("type") if isinstance(asked.response_format, dict) else None
    if form not in (None, "text") and not can.json_schema:
        yield "response_format"
    # In a completion, logprobs: 0 asks for those of the tokens themselves.
    if asked.logprobs is not None and asked.logprobs is not False and not can.logprobs:
        yield "logprobs"
    if isinstance(asked.n, int) and asked.n > 1 and not can.n:
        yield "n"
    yield from (where for where, part in _parts(asked.messages) if PARTS.get(part, "text") not in can.parts)


def _parts(messages: Any) -> Iterator[tuple[str, str]]:
    """Where each content part is, and its type."""
    for outer, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        for inner, part in enumerate(content if isinstance(content, list) else ()):
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str):
                yield f"messages[{outer}].content[{inner}]", kind

"""What a pool can honour, and the refusal of a request that asks for more. Pure functions."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel
from pydantic_core import from_json

from deployments import reach
from deployments.engine import Capabilities, EngineRequest, Part
from deployments.errors import ApiError, unsupported

# What engines differ in, beside their endpoints.
Need = Literal["tools", "forced_tools", "json_schema", "logprobs", "n", "image", "audio", "video", "file"]

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
# A body in which none of these occurs sets no field that engines differ in, and has no part. The last is for keys that
# are spelt with escapes.
_FIELDS = (b'"tools"', b'"tool_choice"', b'"functions"', b'"response_format"', b'"logprobs"', b'"n"', b'"text"')
_HINTS = (*_FIELDS, b'"type"', b"\\u")


class Asked(BaseModel):
    """The fields that engines differ in. Their types are for the engine to judge."""

    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    response_format: Any = None
    logprobs: Any = None
    n: Any = None
    messages: Any = None
    input: Any = None  # of the Responses API
    text: Any = None  # of the Responses API; its `format` is what response_format is in chat


def refuse_beyond(can: Capabilities, request: EngineRequest, engine: str) -> None:
    """Return if `engine` has the endpoint and honours each field that the request sets.

    Raises:
        ApiError: 400, with the field and the engine named.
    """
    if request.endpoint not in can.endpoints:
        served = ", ".join(can.endpoints)
        message = f"The {engine} engine doesn't serve '{request.endpoint}' for this model; it serves {served}."
        raise ApiError(400, message, param="model", code="unsupported_endpoint")
    if not may_need(request.body) and not reach.may_reach(request.body):
        return
    try:
        document = from_json(request.body)
    except ValueError:
        return  # the engine says better what is wrong with it
    if not isinstance(document, dict):
        return
    asked = Asked.model_validate(document)
    for needed in needs_of(asked):
        if not honours(can, needed.what):
            chosen = needed.param == "tools" and can.tools and asked.tool_choice is not None
            raise unsupported("tool_choice" if chosen else needed.param, engine)
    reach.refuse_foreign(document, request.endpoint)


class Needed(NamedTuple):
    """What a request needs of an engine, and the field that says so."""

    what: Need
    param: str


def may_need(body: bytes) -> bool:
    """Whether a request may need anything; False is sure, and costs little to know."""
    return any(hint in body for hint in _HINTS)


def needs_of(asked: Asked) -> Iterator[Needed]:
    """Everything that a request needs."""
    choice = _type(asked.tool_choice) or asked.tool_choice  # Anthropic's is an object
    if asked.tools not in NOTHING and choice != "none":
        yield Needed("tools" if choice in (None, "auto") else "forced_tools", "tools")
    if asked.functions not in NOTHING:
        yield Needed("tools", "functions")
    if _type(asked.response_format) not in (None, "text"):
        yield Needed("json_schema", "response_format")
    if isinstance(asked.text, dict) and _type(asked.text.get("format")) not in (None, "text"):
        yield Needed("json_schema", "text.format")
    # In a completion, logprobs: 0 asks for those of the tokens themselves.
    if asked.logprobs is not None and asked.logprobs is not False:
        yield Needed("logprobs", "logprobs")
    if isinstance(asked.n, int) and asked.n > 1:
        yield Needed("n", "n")
    for where, part in (*_parts("messages", asked.messages), *_parts("input", asked.input)):
        kind = PARTS.get(_type(part) or "", "text")
        if kind != "text":
            yield Needed(kind, where)


def honours(can: Capabilities, need: Need) -> bool:
    """Whether an engine has what a request needs."""
    match need:
        case "tools":
            return "auto" in can.tools
        case "forced_tools":
            return "forced" in can.tools
        case "json_schema":
            return can.json_schema
        case "logprobs":
            return can.logprobs
        case "n":
            return can.n
        case _:
            return need in can.parts


def _type(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else None


def _parts(field: str, messages: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each content part is, and the part."""
    for outer, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        for inner, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, dict):
                yield f"{field}[{outer}].content[{inner}]", part

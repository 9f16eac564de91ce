"""What an engine's own OpenAI layer answers, as wire-ready bytes with its errors in their place."""

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, cast

from pydantic import BaseModel
from starlette.responses import Response, StreamingResponse

from deployments.engine import Endpoint, EngineRequest, EngineResponse
from deployments.errors import ApiError
from deployments.openai_layer.schema import OPENAI_FIELDS

EVENTS = "text/event-stream"
_ERROR_EVENTS = ('data: {"error"', "event: error")
_PRINTED_PARAMETER = re.compile(r" \(parameter=.*\)$", re.DOTALL)  # vLLM adds it to an exception that it prints
_SOURCE_LINE = re.compile(r"\[\d\d:\d\d:\d\d\] \S+:\d+: ")  # xgrammar's: a time, and a place in its sources
_TOO_LONG = ("maximum context length", "max_model_len", "longer than the model's context length", "is too large:")
# What a message speaks of, where it begins with no field's name.
_ABOUT = {
    "tools": re.compile(r"\btool", re.IGNORECASE),
    "response_format": re.compile(r"grammar|json.?schema|structured output", re.IGNORECASE),
}
# What engines call a field of another API, which they translate to chat's.
_TRANSLATED: Mapping[Endpoint, str] = {"messages": "max_tokens", "responses": "max_output_tokens"}


def respond(answer: Any, request: EngineRequest) -> EngineResponse:
    """What a handler returned, as bytes: a document, a list of them, a response of Starlette's, or events.

    Raises:
        ApiError: it is an error.
    """
    if isinstance(answer, StreamingResponse):
        answer = answer.body_iterator
    if isinstance(answer, Response):
        body = bytes(answer.body)
        if answer.status_code >= 400:
            raise api_error(_error_in(json.loads(body)) or {"message": body.decode()}, request, answer.status_code)
        return EngineResponse(body, media_type=answer.media_type or "application/json")
    if isinstance(answer, AsyncIterator):
        return EngineResponse(events(answer, request), media_type=EVENTS)
    if isinstance(answer, list):
        return EngineResponse(b"[%b]" % b",".join(_json(item, request) for item in answer))
    if error := _error_in(answer.model_dump()):
        raise api_error(error, request)
    return EngineResponse(_json(answer, request))


def _json(document: BaseModel, request: EngineRequest) -> bytes:
    # Anthropic's documents leave out what isn't there.
    return document.model_dump_json(by_alias=True, exclude_none=request.endpoint == "messages").encode()


def _error_in(document: Any) -> dict[str, Any] | None:
    """The error in a document, in OpenAI's envelope (vLLM) or out of it (SGLang); None: it is an answer."""
    if isinstance(document, dict):
        if document.get("object") == "error":
            return document
        if isinstance(found := document.get("error"), dict) and document.keys() <= {"error", "type", "request_id"}:
            return found
    return None


def api_error(error: Mapping[str, Any], request: EngineRequest, status: int | None = None) -> ApiError:
    """An engine's error as ours. Engines write the HTTP status into `code`."""
    stated = error.get("code")
    status = int(stated) if isinstance(stated, int) and stated >= 400 else status or 500
    message = _SOURCE_LINE.sub("", str(error.get("message"))).strip()
    code = "context_length_exceeded" if any(phrase in message for phrase in _TOO_LONG) else None
    param = _blamed(error.get("param"), message, request) if status < 500 else None
    kind = "invalid_request_error" if status < 500 else "server_error"
    return ApiError(status, message, type=kind, param=param, code=code)


def _blamed(param: str | None, message: str, request: EngineRequest) -> str:
    """The request's field at fault. Engines often name none, or one of their own (`input_tokens`): then it is the
    field that the message begins with, else the prompt."""
    first_word = message.partition(" ")[0].strip("'`")
    about = next((name for name, words in _ABOUT.items() if words.search(message)), None)
    candidates = (param, first_word, about)
    blamed = next((name for name in candidates if name in OPENAI_FIELDS), PROMPT_FIELDS[request.endpoint])
    return _TRANSLATED.get(request.endpoint, blamed) if blamed == "max_completion_tokens" else blamed


PROMPT_FIELDS: Mapping[Endpoint, str] = {
    "chat/completions": "messages",
    "completions": "prompt",
    "responses": "input",
    "messages": "messages",
    "embeddings": "input",
    "score": "text_1",
    "rerank": "documents",
    "tokenize": "prompt",
    "detokenize": "tokens",
}


async def events(stream: AsyncIterator[Any], request: EngineRequest) -> AsyncGenerator[bytes]:
    """An engine's events, with its errors in their place.

    Engines find some faults of a streamed request only after their servers have answered 200, and write them as the
    first event: here they are raised, for nothing has been sent yet. So is a later failure of the engine's own, such as
    vLLM's when its engine core has died. After any other error its `[DONE]` is dropped: a client would take a broken
    answer for a whole one.

    Raises:
        ApiError: an error, before anything else; or one of 500 or more.
    """
    sent = broken = False
    async with aclosing(cast("AsyncGenerator[Any]", stream)) as generator:
        async for item in generator:
            event = _event(item)
            if event.startswith(_ERROR_EVENTS):
                error = _event_error(event, request)
                if not sent or error.status >= 500:
                    raise error
                broken = True
            if not (broken and event.startswith("data: [DONE]")):
                sent = True
                for part in _apart(event, request.endpoint):
                    yield part.encode()


def _apart(event: str, endpoint: Endpoint) -> tuple[str, ...]:
    """A chat's last chunk with an empty delta, as OpenAI's is; vLLM puts the last piece of text into it too."""
    if endpoint != "chat/completions" or '"finish_reason":"' not in event or not event.startswith("data: {"):
        return (event,)
    chunk = json.loads(event.removeprefix("data: "))
    if not any(choice["delta"].get(key) for choice in chunk["choices"] for key in ("content", "tool_calls")):
        return (event,)
    ends = [{**choice, "delta": {}, "logprobs": None} for choice in chunk["choices"]]
    for choice in chunk["choices"]:
        choice["finish_reason"] = None
    return _data(chunk), _data({**chunk, "choices": ends})


def _data(document: dict[str, Any]) -> str:
    return f"data: {json.dumps(document, ensure_ascii=False, separators=(',', ':'))}\n\n"


def _event(item: Any) -> str:
    """An event as text; vLLM gives those of the Responses API as objects."""
    if isinstance(item, BaseModel):
        return f"event: {getattr(item, 'type', 'unknown')}\ndata: {item.model_dump_json(by_alias=True)}\n\n"
    return item.decode() if isinstance(item, bytes) else str(item)


def _event_error(event: str, request: EngineRequest) -> ApiError:
    document = json.loads(event[event.index("data: ") + len("data: ") :])
    error = document.get("error", document)
    return api_error({**error, "message": _PRINTED_PARAMETER.sub("", str(error.get("message")))}, request)

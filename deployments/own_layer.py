"""The way through an engine's own OpenAI layer: a request as that layer's type, its answer as wire-ready bytes.

For engines that bring such a layer, vLLM and SGLang. Engines without one use `openai_layer`.
"""

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, cast, get_args

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from pydantic_core import from_json
from starlette.responses import Response, StreamingResponse

from deployments.engine import Capabilities, Endpoint, EngineRequest, EngineResponse
from deployments.errors import ApiError, from_validation_error, unknown_keys, unsupported
from deployments.model_facts import ModelFacts
from deployments.openai_layer.schema import ChatRequest, CompletionRequest

# Fields of OpenAI's API that ask nothing of an engine.
HARMLESS = frozenset({"metadata", "service_tier", "safety_identifier", "prompt_cache_key"})
OPENAI_FIELDS = frozenset(ChatRequest.model_fields) | frozenset(CompletionRequest.model_fields)
WITHOUT_EFFECT = {**ChatRequest.without_effect, **CompletionRequest.without_effect}
# Extensions of engines with which a request would reach into the deployment: other servers' addresses, places in a
# queue, names of requests, code.
RESERVED = frozenset(
    [
        "bootstrap_host",
        "bootstrap_port",
        "bootstrap_room",
        "custom_logit_processor",
        "data_parallel_rank",
        "disagg_prefill_dp_rank",
        "ec_transfer_params",
        "kv_transfer_params",
        "lora_path",
        "priority",
        "request_id",
        "rid",
        "routed_dp_rank",
        "session_id",
        "session_params",
    ]
)

EVENTS = "text/event-stream"
_ERROR_EVENTS = ('data: {"error"', "event: error")
_PRINTED_PARAMETER = re.compile(r" \(parameter=.*\)$", re.DOTALL)  # vLLM adds it to an exception that it prints
_TOO_LONG = ("maximum context length", "max_model_len", "longer than the model's context length", "is too large:")
# What engines call a field of another API, which they translate to chat's.
_TRANSLATED: Mapping[Endpoint, str] = {"messages": "max_tokens", "responses": "max_output_tokens"}


GENERATE: tuple[Endpoint, ...] = ("chat/completions", "completions", "responses", "messages")
EMBED: tuple[Endpoint, ...] = ("embeddings", "score", "rerank")
TOKENIZE: tuple[Endpoint, ...] = ("tokenize", "detokenize")


class PassedArgs(BaseModel):
    """`engine_args` that are the engine's own, by their Python names.

    The engine itself judges them when the pool starts: only its environment knows them all.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    pool_keys: ClassVar[frozenset[str]] = frozenset()  # the pool sets these by keys of its own

    @model_validator(mode="after")
    def _leaves_the_model_to_the_pool(self) -> Self:
        if taken := self.pool_keys & (self.model_extra or {}).keys():
            raise ValueError(f"'{min(taken)}' is set by the pool's own keys model, revision and served_name")
        return self


@dataclass(frozen=True, slots=True)
class Handler:
    """One endpoint of an engine's own layer."""

    schema: Any  # its request's type: a pydantic model, or a union of some
    call: Callable[[Any], Awaitable[Any]]  # a parsed request to its answer
    without_effect: Collection[str] = ()  # fields that the schema has and the engine ignores


@dataclass(frozen=True, slots=True)
class OwnLayer:
    """An engine's own layer, under the one name that its model has in this pool."""

    engine: str
    served_name: str
    handlers: Mapping[Endpoint, Handler] = field(default_factory=dict)
    id_field: str | None = "request_id"  # what the schemas call a request's id; None: the layer makes its own
    adapter_field: str | None = None  # where a LoRA adapter is named, if not in `model` alone

    async def handle(self, request: EngineRequest) -> EngineResponse:
        """Answer a request.

        Raises:
            ApiError: 400, also for a field that the engine would ignore; and what the engine answers as an error.
        """
        handler = self.handlers[request.endpoint]
        return respond(await handler.call(self._parse(handler, request)), request)

    def _parse(self, handler: Handler, request: EngineRequest) -> Any:
        document = _read(request.body)
        fields = field_names(handler.schema)
        for name in sorted(document):
            if name in RESERVED and document[name] is not None:
                raise ApiError(400, f"'{name}' is not for clients to set.", param=name, code="unsupported_parameter")
            if name not in fields or name in handler.without_effect:
                self._refuse_ignored(name, document[name], fields)
        # A null means what leaving the field out means: so it does in OpenAI's API.
        known = {name: value for name, value in document.items() if name in fields and value is not None}
        ours = {"model": request.adapter or self.served_name}
        if self.id_field:
            ours[self.id_field] = request.request_id
        if request.adapter and self.adapter_field:
            ours[self.adapter_field] = request.adapter
        try:
            return TypeAdapter(handler.schema).validate_python(
                known | {name: value for name, value in ours.items() if name in fields}
            )
        except ValidationError as error:
            raise from_validation_error(error, fields) from None

    def _refuse_ignored(self, name: str, value: Any, fields: Collection[str]) -> None:
        if name in HARMLESS or value in WITHOUT_EFFECT.get(name, ()):
            return
        if name in OPENAI_FIELDS or name in fields:
            raise unsupported(name, self.engine)
        raise ApiError(400, unknown_keys([name], fields)[0], param=name, code="unknown_parameter")


def _read(body: bytes) -> dict[str, Any]:
    try:
        document = from_json(body)
    except ValueError as error:
        raise ApiError(400, f"The request body is not JSON: {error}.") from None
    if not isinstance(document, dict):
        raise ApiError(400, "The request body is not a JSON object.", code="invalid_value")
    return document


def warm_up_request(endpoints: Collection[Endpoint]) -> EngineRequest:
    """A short request that an engine with these endpoints can answer."""
    if "completions" in endpoints:
        return EngineRequest("completions", b'{"prompt": "Hello", "max_tokens": 2}', "warm-up")
    return EngineRequest("embeddings", b'{"input": "Hello"}', "warm-up")


def field_names(schema: Any) -> frozenset[str]:
    """The fields of a pydantic model, or of all models of a union, as clients write them."""
    return frozenset(_field_names(schema))


def _field_names(schema: Any) -> Iterator[str]:
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        for name, info in schema.model_fields.items():
            yield info.alias or name
    else:
        for part in get_args(schema):
            yield from _field_names(part)


def capabilities(
    facts: ModelFacts, handlers: Collection[Endpoint], context_length: int | None, *, auto_tools: bool, lora: bool
) -> Capabilities:
    """What an engine with a whole OpenAI layer can honour; without `handlers`, what it is expected to have."""
    generates = facts.generates
    return Capabilities(
        endpoints=tuple(handlers) or (GENERATE if generates else EMBED) + TOKENIZE,
        context_length=context_length or facts.context_length,
        tools=() if not generates else ("auto", "forced") if auto_tools else ("forced",),
        json_schema=generates,
        logprobs=generates,
        n=generates,
        parts=("text", "image") if facts.sees else ("text",),
        lora=lora,
    )


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
    message = str(error.get("message"))
    code = "context_length_exceeded" if any(phrase in message for phrase in _TOO_LONG) else None
    param = _blamed(error.get("param"), message, request) if status < 500 else None
    kind = "invalid_request_error" if status < 500 else "server_error"
    return ApiError(status, message, type=kind, param=param, code=code)


def _blamed(param: str | None, message: str, request: EngineRequest) -> str:
    """The request's field at fault. Engines often name none, or one of their own (`input_tokens`): then it is the
    field that the message begins with, else the prompt."""
    first_word = message.partition(" ")[0].strip("'`")
    candidates = (param, first_word, "tools" if "tool" in message else None)
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
    first event: here they are raised, for nothing has been sent yet. After a later error its `[DONE]` is dropped: a
    client would take a broken answer for a whole one.
    """
    sent = broken = False
    async with aclosing(cast("AsyncGenerator[Any]", stream)) as generator:
        async for item in generator:
            event = _event(item)
            if event.startswith(_ERROR_EVENTS):
                if not sent:
                    raise _first_event_error(event, request)
                broken = True
            if not (broken and event.startswith("data: [DONE]")):
                yield event.encode()
                sent = True


def _event(item: Any) -> str:
    """An event as text; vLLM gives those of the Responses API as objects."""
    if isinstance(item, BaseModel):
        return f"event: {getattr(item, 'type', 'unknown')}\ndata: {item.model_dump_json(by_alias=True)}\n\n"
    return item.decode() if isinstance(item, bytes) else str(item)


def _first_event_error(event: str, request: EngineRequest) -> ApiError:
    document = json.loads(event[event.index("data: ") + len("data: ") :])
    error = document.get("error", document)
    return api_error({**error, "message": _PRINTED_PARAMETER.sub("", str(error.get("message")))}, request)

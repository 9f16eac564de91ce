"""The way through an engine's own OpenAI layer: a request as that layer's type, its answer as wire-ready bytes.

For engines that bring such a layer, vLLM and SGLang. Engines without one use `openai_layer`.
"""

import math
import os
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from pydantic_core import from_json

from deployments import bounds
from deployments.engine import Capabilities, Endpoint, EngineRequest, EngineResponse
from deployments.engine_args import EngineArgs
from deployments.errors import ApiError, from_validation_error, unknown_keys, unsupported
from deployments.model_facts import ModelFacts
from deployments.openai_layer.schema import OPENAI_FIELDS, ChatRequest, CompletionRequest
from deployments.own_answers import respond
from deployments.reach import refuse_reserved

# Fields of OpenAI's API that ask nothing of an engine.
HARMLESS = frozenset({"metadata", "service_tier", "safety_identifier", "prompt_cache_key"})
WITHOUT_EFFECT = {
    **ChatRequest.without_effect,
    **CompletionRequest.without_effect,
    "parallel_tool_calls": (None, True),
}

GENERATE: tuple[Endpoint, ...] = ("chat/completions", "completions", "responses", "messages")
EMBED: tuple[Endpoint, ...] = ("embeddings", "score", "rerank")
TOKENIZE: tuple[Endpoint, ...] = ("tokenize", "detokenize")


class PassedArgs(EngineArgs):
    """`engine_args` that are the engine's own, by their Python names.

    The engine itself judges them when the pool starts: only its environment knows them all.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    pool_keys: ClassVar[frozenset[str]] = frozenset()  # the pool sets these by keys of its own
    size_keys: ClassVar[tuple[str, ...]] = ()  # of parallelism: a replica needs their product in GPUs
    memory_key: ClassVar[str | None] = None  # of the part of a GPU's memory that is used
    memory: ClassVar[float] = 0.9  # the engine's own default for it

    @model_validator(mode="after")
    def _leaves_the_model_to_the_pool(self) -> Self:
        if taken := self.pool_keys & (self.model_extra or {}).keys():
            raise ValueError(f"'{min(taken)}' is set by the pool's own keys model, revision and served_name")
        return self

    @model_validator(mode="after")
    def _has_whole_sizes(self) -> Self:
        for key in self.size_keys:
            if type(size := getattr(self, key, 1)) is not int or size < 1:
                raise ValueError(f"'{key}' has to be a whole number, 1 or more")
        return self

    def gpus(self) -> int:
        return math.prod(getattr(self, key, 1) for key in self.size_keys)

    def sharing(self, share: float) -> Self:
        if self.memory_key is None or self.memory_key in (self.model_extra or {}):
            return self
        return self.model_copy(update={self.memory_key: round(self.memory * share, 4)})

    @model_validator(mode="after")
    def _misspells_none_of_ours(self) -> Self:
        """The engine's own keys aren't known here; what is one letter off one of ours is none of them."""
        for key in self.model_extra or {}:
            for ours in type(self).model_fields:
                if one_letter_off(key, ours):
                    raise ValueError(f"Unknown key '{key}'; did you mean '{ours}'?")
        return self


def one_letter_off(one: str, other: str) -> bool:
    """Whether a letter was changed, added or left out."""
    at = len(os.path.commonprefix([one, other]))
    rests = (one[at + 1 :], other[at + 1 :]), (one[at + 1 :], other[at:]), (one[at:], other[at + 1 :])
    return one != other and any(ours == theirs for ours, theirs in rests)


@dataclass(frozen=True, slots=True)
class Handler:
    """One endpoint of an engine's own layer."""

    schema: Any  # its request's type: a pydantic model, or a union of some
    call: Callable[[Any], Awaitable[Any]]  # a parsed request to its answer
    without_effect: Collection[str] = ()  # fields that the schema has and the engine ignores
    fields: frozenset[str] = field(init=False)  # the schema's, as clients write them
    adapter: TypeAdapter[Any] = field(init=False)

    def __post_init__(self) -> None:
        # Once, not for each request: a union's takes milliseconds to make.
        object.__setattr__(self, "fields", field_names(self.schema))
        object.__setattr__(self, "adapter", TypeAdapter(self.schema))


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
        if request.endpoint in ("chat/completions", "completions"):
            bounds.check(document)
        fields = handler.fields
        for name in sorted(document):
            refuse_reserved(name, document[name])
            if name not in fields or (name in handler.without_effect and document[name] is not None):
                self._refuse_ignored(name, document[name], fields)
        # A null means what leaving the field out means: so it does in OpenAI's API.
        known = {name: value for name, value in document.items() if name in fields and value is not None}
        ours = {"model": request.adapter or self.served_name}
        if self.id_field:
            ours[self.id_field] = request.request_id
        if request.adapter and self.adapter_field:
            ours[self.adapter_field] = request.adapter
        try:
            return handler.adapter.validate_python(
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

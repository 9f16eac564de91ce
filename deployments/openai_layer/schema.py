"""OpenAI's request documents, as this layer honours them. What an engine can't honour is refused, never ignored.

Source of the fields and their bounds: OpenAI's API reference, chat/completions/create and completions/create.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from deployments.errors import ApiError, from_validation_error, unsupported
from deployments.openai_layer.tokens import Guide

MAX_CHOICES = 16
MAX_STOP_STRINGS = 16
MAX_TOP_LOGPROBS = 20
MAX_SCHEMA_CHARS = 120_000  # OpenAI's own limit of structured outputs
MAX_SUBSCHEMAS = 5_000  # as OpenAI's limit of properties; checking each takes 0.1 ms, in which nothing else is done


def _strings(value: Any) -> Any:
    """One string or an array of strings, as an array."""
    if value is None or isinstance(value, str):
        return [value] if value else []
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return [item for item in value if item]
    raise ValueError("expected a string or an array of strings")


def _content(value: Any) -> Any:
    """A message's content as plain text: a string, or an array of text parts."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_text_of_part(part, index) for index, part in enumerate(value))
    raise ValueError("expected a string or an array of content parts")


def _text_of_part(part: Any, index: int) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise ValueError(f"content part {index} has no 'type'")
    if kind != "text":
        raise ValueError(f"content part {index} is of type '{kind}'; this engine takes only 'text'")
    text = part.get("text")
    if not isinstance(text, str):
        raise ValueError(f"content part {index} has no 'text' string")
    return text


def _prompts(value: Any) -> Any:
    """A completion's prompt as a list of prompts, each a string or a list of token ids."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(_is_token(item) for item in value):
            return [value]
        if all(isinstance(item, str) or _is_token_list(item) for item in value):
            return value
    raise ValueError("expected a string, an array of strings, an array of token ids, or an array of such arrays")


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_token_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_token(item) for item in value)


Content = Annotated[str | None, BeforeValidator(_content)]
Unsupported = Annotated[Any, Field(default=None, description="Refused unless null or without effect.")]
Penalty = Annotated[float | None, Field(default=None, ge=-2, le=2, description="Refused by engines that have none.")]


class Document(BaseModel):
    """A request, or a part of one, of which nothing is ignored."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def read(cls, body: bytes) -> Self:
        """The request in `body`.

        Raises:
            ApiError: 400, with the field at fault.
        """
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            raise from_validation_error(error, cls.model_fields) from None


def _subschemas(node: Any) -> Iterator[Any]:
    """Whatever in a JSON schema may be one itself."""
    if isinstance(node, dict | bool):
        yield node
    for item in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _subschemas(item)


class StreamOptions(Document):
    include_usage: bool | None = None


class GenerationRequest(Document):
    """What chat and completions have in common."""

    prompt_field: ClassVar[str]
    # Values of a field that ask for nothing; any other value of it is a 400 that names the field and the engine,
    # unless the engine honours the field.
    without_effect: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "frequency_penalty": (None, 0),
        "presence_penalty": (None, 0),
        "logit_bias": (None, {}),
    }

    model: str = Field(description="A model's name, as `/v1/models` lists it.")
    max_tokens: int | None = Field(
        None, ge=1, lt=2**63, description="Most tokens to generate; default: what the context leaves."
    )
    temperature: float | None = Field(None, ge=0, le=2, description="0 is greedy; default 1.")
    top_p: float | None = Field(None, gt=0, le=1, description="Nucleus sampling; default 1.")
    seed: int | None = Field(None, ge=-(2**63), lt=2**63, description="Same seed and request, same answer.")
    n: int | None = Field(None, ge=1, le=MAX_CHOICES, description="Choices to generate; default 1.")
    stop: Annotated[list[str], BeforeValidator(_strings), Field(max_length=MAX_STOP_STRINGS)] = []
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    frequency_penalty: Penalty
    presence_penalty: Penalty
    logit_bias: Unsupported

    @classmethod
    def parse(cls, body: bytes, engine: str, honours: Collection[str] = ()) -> Self:
        """The request in `body`, for an engine that honours these of the fields in `without_effect`.

        Raises:
            ApiError: 400, with the field at fault; also for a field that `engine` can't honour.
        """
        request = cls.read(body)
        request._refuse_unsupported(engine, honours)
        if request.stream_options is not None and not request.stream:
            message = "'stream_options' is only allowed when 'stream' is true."
            raise ApiError(400, message, param="stream_options", code="invalid_value")
        return request

    def _refuse_unsupported(self, engine: str, honours: Collection[str]) -> None:
        for name in self.without_effect:
            if name not in honours and not self._asks_for_nothing(name):
                raise unsupported(name, engine)

    def _asks_for_nothing(self, name: str) -> bool:
        return getattr(self, name) in self.without_effect[name]

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def guide(self) -> Guide | None:
        """What the answer is held to."""
        return None


class JsonSchema(Document):
    """`response_format.json_schema`."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, serialize_by_alias=True)

    name: str
    description: str | None = None
    schema_: dict[str, Any] | bool = Field(alias="schema")
    strict: bool | None = None

    @field_validator("schema_")
    @classmethod
    def _is_one(cls, value: dict[str, Any] | bool) -> dict[str, Any] | bool:
        """Engines die of some that aren't."""
        from jsonschema import Draft202012Validator, SchemaError

        if len(json.dumps(value)) > MAX_SCHEMA_CHARS:
            raise ValueError(f"longer than {MAX_SCHEMA_CHARS} characters")
        if sum(1 for _ in _subschemas(value)) > MAX_SUBSCHEMAS:
            raise ValueError(f"more than {MAX_SUBSCHEMAS} schemas in one")
        try:
            Draft202012Validator.check_schema(value)
        except SchemaError as error:
            raise ValueError(f"not a JSON schema: {error.message}") from None
        except RecursionError:
            raise ValueError("nested too deeply") from None
        return value


class ResponseFormat(Document):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("'json_schema' belongs to the type 'json_schema', and only to it")
        return self


TEXT = ResponseFormat(type="text")


class Message(Document):
    role: Literal["system", "developer", "user", "assistant"]
    content: Content = None
    name: str | None = None

    @property
    def says_something(self) -> bool:
        return self.content is not None


class ChatRequest(GenerationRequest):
    """`POST /v1/chat/completions`."""

    prompt_field: ClassVar[str] = "messages"
    without_effect: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **GenerationRequest.without_effect,
        "tools": (None, []),
        "tool_choice": (None, "none", "auto"),
        "functions": (None, []),
        "function_call": (None, "none", "auto"),
        "response_format": (None, TEXT),
        "modalities": (None, ["text"]),
        "audio": (None,),
        "prediction": (None,),
        "reasoning_effort": (None, "none"),
        "web_search_options": (None,),
        "store": (None, False),
    }

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**63, description="As max_tokens; wins over it.")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    parallel_tool_calls: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    tools: Unsupported
    tool_choice: Unsupported
    functions: Unsupported
    function_call: Unsupported
    response_format: ResponseFormat | None = Field(None, description="Refused by engines that can't enforce it.")
    modalities: Unsupported
    audio: Unsupported
    prediction: Unsupported
    reasoning_effort: Unsupported
    web_search_options: Unsupported
    store: Unsupported

    @property
    def guide(self) -> Guide | None:
        match self.response_format:
            case ResponseFormat(type="json_object"):
                return Guide("json_object")
            case ResponseFormat(json_schema=JsonSchema(schema_=schema)):
                return Guide("json_schema", json.dumps(schema))
        return None

    def _asks_for_nothing(self, name: str) -> bool:
        # Tools that mustn't be called ask for nothing.
        return super()._asks_for_nothing(name) or (name == "tools" and self.tool_choice == "none")

    @classmethod
    def parse(cls, body: bytes, engine: str, honours: Collection[str] = ()) -> Self:
        request = super().parse(body, engine, honours)
        if request.top_logprobs and not request.logprobs:
            message = "'top_logprobs' is only allowed when 'logprobs' is true."
            raise ApiError(400, message, param="top_logprobs", code="invalid_value")
        for index, message_ in enumerate(request.messages):
            if not message_.says_something:
                param = f"messages[{index}].content"
                raise ApiError(400, f"Missing required parameter: '{param}'.", param=param, code="missing_parameter")
        return request


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`."""

    prompt_field: ClassVar[str] = "prompt"
    without_effect: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **GenerationRequest.without_effect,
        "best_of": (None, 1),
        "suffix": (None, ""),
    }

    prompt: Annotated[list[str | list[int]], BeforeValidator(_prompts), Field(min_length=1, max_length=256)]
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)
    best_of: Unsupported
    suffix: Unsupported


OPENAI_FIELDS = frozenset(ChatRequest.model_fields) | frozenset(CompletionRequest.model_fields)

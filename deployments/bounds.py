"""OpenAI's own bounds of a request's fields, for engines whose layers don't hold them all.

Source: OpenAI's API reference, chat/completions/create and completions/create.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deployments.errors import ApiError, from_validation_error
from deployments.openai_layer.prompts import refuse_outside
from deployments.openai_layer.schema import MAX_TOP_LOGPROBS

MAX_CHOICES = 128


class _Message(BaseModel):
    role: str
    content: str | list[Any] | None = None


class _Bounded(BaseModel):
    """The fields that have bounds; the others are for the engine to judge."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    messages: list[_Message] | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = Field(None, ge=1, lt=2**63)
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**63)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)


def check(document: Mapping[str, Any]) -> None:
    """Return if the fields of a chat or a completion are within their bounds.

    Raises:
        ApiError: 400, with the field at fault.
    """
    try:
        _Bounded.model_validate(document)
    except ValidationError as error:
        raise from_validation_error(error, _Bounded.model_fields) from None
    for field, needed in (("stream_options", "stream"), ("top_logprobs", "logprobs")):
        if document.get(field) and not document.get(needed):
            message = f"'{field}' is only allowed when '{needed}' is true."
            raise ApiError(400, message, param=field, code="invalid_value")


TOKEN_FIELDS = ("prompt", "input", "query", "items", "label_token_ids", "tokens")  # may hold token ids, in lists


def check_tokens(request: Any, vocabulary: int) -> None:
    """Return if every token id that a request names is in the model's vocabulary, for engines that die of others.

    Raises:
        ApiError: 400, with the field and the id.
    """
    for field in TOKEN_FIELDS:
        _refuse_outside(field, getattr(request, field, None), vocabulary)
    for token in getattr(request, "logit_bias", None) or {}:
        if not token.isdecimal():
            raise ApiError(400, f"'{token}' in 'logit_bias' is no token id.", param="logit_bias", code="invalid_value")
        _refuse_outside("logit_bias", [int(token)], vocabulary)


def _refuse_outside(field: str, value: Any, vocabulary: int) -> None:
    for item in value if isinstance(value, list) else ():
        if isinstance(item, list):
            _refuse_outside(field, item, vocabulary)
        elif isinstance(item, int):
            refuse_outside([item], field, vocabulary)

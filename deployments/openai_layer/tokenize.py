"""The endpoints `tokenize` and `detokenize`, in the form that vLLM gave them."""

import json
from typing import Any

from pydantic import Field

from deployments.engine import EngineRequest, EngineResponse
from deployments.errors import ApiError
from deployments.openai_layer.prompts import Prompts
from deployments.openai_layer.schema import Document, Message


class TokenizeRequest(Document):
    """`POST /tokenize`: of a text, or of a conversation."""

    model: str
    prompt: str | None = None
    messages: list[Message] | None = Field(None, min_length=1)
    add_special_tokens: bool = True  # to a text; a conversation's are its template's
    add_generation_prompt: bool = True


class DetokenizeRequest(Document):
    """`POST /detokenize`."""

    model: str
    tokens: list[int] = Field(max_length=1_000_000)


async def tokenize(request: EngineRequest, prompts: Prompts, context_length: int) -> EngineResponse:
    """The token ids, how many they are, and how many the model takes."""
    asked = TokenizeRequest.read(request.body)
    if (asked.prompt is None) == (asked.messages is None):
        raise ApiError(400, "Give either 'prompt' or 'messages'.", param="prompt", code="invalid_value")
    if asked.messages is not None:
        tokens = await prompts.render(asked.messages, add_generation_prompt=asked.add_generation_prompt)
    else:
        tokens = await prompts.encode(asked.prompt or "", add_special_tokens=asked.add_special_tokens)
    return _answer({"count": len(tokens), "max_model_len": context_length, "tokens": tokens})


async def detokenize(request: EngineRequest, prompts: Prompts) -> EngineResponse:
    asked = DetokenizeRequest.read(request.body)
    if negative := [token for token in asked.tokens if token < 0]:
        raise ApiError(400, f"'tokens' has a negative id, {negative[0]}.", param="tokens", code="invalid_value")
    return _answer({"prompt": await prompts.decode(asked.tokens, "tokens")})


def _answer(document: dict[str, Any]) -> EngineResponse:
    return EngineResponse(json.dumps(document, ensure_ascii=False).encode())

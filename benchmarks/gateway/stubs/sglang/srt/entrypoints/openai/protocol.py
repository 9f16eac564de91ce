"""The request and answer models that ray.serve.llm takes from SGLang where there is no vLLM, as far as it needs them.

They check less than the real ones, so what ray.serve.llm costs with these is less than with any engine.
"""

from typing import Any

from pydantic import BaseModel, ConfigDict


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class _Message(_Open):
    role: str
    content: str | list[dict[str, Any]] | None = None


class _Request(_Open):
    model: str | None = None
    stream: bool | None = False
    max_tokens: int | None = None
    temperature: float | None = None


class ChatCompletionRequest(_Request):
    messages: list[_Message]
    stream_options: dict[str, Any] | None = None


class CompletionRequest(_Request):
    prompt: Any = None


class ChatCompletionResponse(_Open):
    id: str
    object: str
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: dict[str, Any] | None = None


# Imported, never made: the benchmark asks for chats only.
class ChatCompletionStreamResponse(_Open): ...


class CompletionResponse(_Open): ...


class CompletionStreamResponse(_Open): ...


class DetokenizeRequest(_Open): ...


class DetokenizeResponse(_Open): ...


class EmbeddingRequest(_Open): ...


class EmbeddingResponse(_Open): ...


class ScoringRequest(_Open): ...


class ScoringResponse(_Open): ...


class TokenizeRequest(_Open): ...


class TokenizeResponse(_Open): ...

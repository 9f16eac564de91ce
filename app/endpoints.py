"""The paths that clients may POST to, and what each asks of an engine."""

from dataclasses import dataclass

from pydantic import BaseModel

from deployments.engine import Endpoint
from deployments.openai_layer.schema import ChatRequest, CompletionRequest


@dataclass(frozen=True, slots=True)
class Route:
    """One endpoint, under one path or more."""

    endpoint: Endpoint
    paths: tuple[str, ...]
    summary: str
    schema: type[BaseModel] | None = None  # of the request, as Enginehouse's own layer takes it; None: the engine's


ROUTES: tuple[Route, ...] = (
    Route(
        "chat/completions",
        ("/v1/chat/completions",),
        "Answer a conversation, whole or as server-sent events.",
        ChatRequest,
    ),
    Route("completions", ("/v1/completions",), "Continue a text, whole or as server-sent events.", CompletionRequest),
    Route("responses", ("/v1/responses",), "Answer by OpenAI's Responses API."),
    Route("messages", ("/v1/messages",), "Answer by Anthropic's Messages API."),
    Route("embeddings", ("/v1/embeddings",), "Embed texts as vectors."),
    Route("score", ("/v1/score", "/score"), "Score pairs of texts."),
    Route("rerank", ("/v1/rerank", "/v2/rerank", "/rerank"), "Order documents by how well they fit a query."),
    Route("tokenize", ("/tokenize", "/v1/tokenize"), "The tokens of a text or a conversation."),
    Route("detokenize", ("/detokenize", "/v1/detokenize"), "The text of tokens."),
)

# Whose clients expect Anthropic's error document instead of OpenAI's.
ANTHROPIC_PATHS = frozenset(path for route in ROUTES if route.endpoint == "messages" for path in route.paths)

# What anybody may ask, also without a key: whether the server is there, and how its API looks.
OPEN_PATHS = frozenset({"/health", "/ready", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"})

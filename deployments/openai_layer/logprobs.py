"""Tokens to OpenAI's two forms of log probabilities."""

from collections.abc import Callable, Sequence
from typing import Any

from deployments.openai_layer.tokens import Token

Spell = Callable[[int], bytes]  # the bytes that a token id stands for


def chat_logprobs(spell: Spell, tokens: Sequence[Token]) -> dict[str, Any]:
    """`choices[].logprobs` of a chat completion."""
    return {"content": [_chat_token(spell, token) for token in tokens], "refusal": None}


def _chat_token(spell: Spell, token: Token) -> dict[str, Any]:
    top = [_entry(spell, token_id, logprob) for token_id, logprob in token.top]
    return {**_entry(spell, token.id, token.logprob), "top_logprobs": top}


def _entry(spell: Spell, token_id: int, logprob: float) -> dict[str, Any]:
    raw = spell(token_id)
    return {"token": printable(raw), "logprob": logprob, "bytes": list(raw)}


def completion_logprobs(spell: Spell, tokens: Sequence[Token], offsets: Sequence[int]) -> dict[str, Any]:
    """`choices[].logprobs` of a completion; `offsets` say where in its text each token begins, in characters."""
    return {
        "tokens": [printable(spell(token.id)) for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [
            {printable(spell(token_id)): logprob for token_id, logprob in token.top} or None for token in tokens
        ],
        "text_offset": list(offsets),
    }


def printable(raw: bytes) -> str:
    """A token's text; bytes that are no whole characters in OpenAI's form, `bytes:\\xe2\\x82`."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)

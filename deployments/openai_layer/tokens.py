"""What this layer asks of an engine: a plain stream of tokens."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Protocol

from deployments.openai_layer.text import Tokenizer


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose the tokens of one answer."""

    max_tokens: int
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    seed: int | None = None  # None: different each time
    logprobs: int | None = None  # alternatives to report a token; None: not even the token's own

    def for_choice(self, index: int) -> "Sampling":
        """The sampling of the n-th choice: another seed, so that choices differ and each can be had again."""
        return self if self.seed is None else replace(self, seed=self.seed + index)


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token."""

    id: int
    logprob: float = 0.0  # natural log; meaningful where asked for
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), the likeliest first


class TokenEngine(Protocol):
    """An engine as a stream of tokens."""

    name: str
    context_length: int  # most tokens of prompt and answer together

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    def generate(self, prompt: list[int], sampling: Sampling) -> AsyncIterator[Token]:
        """Tokens up to and with an end-of-sequence token, or `max_tokens` of them. Closing it aborts.

        Raises:
            EngineDeadError: the engine died before the last token.
        """
        ...

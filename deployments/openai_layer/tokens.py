"""What this layer asks of an engine: a plain stream of tokens."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from deployments.openai_layer.text import Tokenizer

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Guide:
    """What the whole answer has to be, enforced while its tokens are chosen."""

    kind: Literal["json_object", "json_schema"]
    schema: str = ""  # the JSON schema, as JSON


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose the tokens of one answer."""

    max_tokens: int
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    seed: int | None = None  # None: different each time
    logprobs: int | None = None  # alternatives to report a token; None: not even the token's own
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    guide: Guide | None = None
    adapter: str | None = None  # the LoRA adapter to generate with

    def for_choice(self, index: int) -> "Sampling":
        """The sampling of the n-th choice: another seed, so that choices differ and each can be had again."""
        return self if self.seed is None else replace(self, seed=self.seed + index)


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token; or some at once, from an engine that gives text and no ids."""

    id: int
    logprob: float = 0.0  # natural log; meaningful where asked for
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), the likeliest first
    text: str | None = None  # what it stands for, from an engine that gives text; whole characters
    count: int = 1  # the tokens that `text` is


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of an answer, from an engine that says why it ended."""

    reason: FinishReason
    tokens: int | None = None  # how many were generated, where the engine counts them itself


class TokenEngine(Protocol):
    """An engine as a stream of tokens."""

    name: str
    context_length: int  # most tokens of prompt and answer together

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    def generate(self, prompt: list[int], sampling: Sampling) -> AsyncIterator[Token | Finish]:
        """Tokens up to and with an end-of-sequence token, or `max_tokens` of them, or a `Finish`. Closing it aborts.

        Raises:
            EngineDeadError: the engine died before the last token.
        """
        ...

"""One choice of an answer: its tokens turned into deltas that a client may see."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from deployments.openai_layer.text import Detokenizer, StopFilter
from deployments.openai_layer.tokens import Finish, FinishReason, Token


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a choice. Concatenating the pieces' texts and tokens gives the whole choice."""

    text: str = ""
    tokens: tuple[Token, ...] = ()  # those whose text begins in this piece
    starts: tuple[int, ...] = ()  # of each token: where in the choice's text its own begins
    finish_reason: FinishReason | None = None  # on the last piece only, which then has no text


@dataclass(slots=True)
class Usage:
    """Tokens of a request, counted while they are generated."""

    prompt_tokens: int
    completion_tokens: int = 0

    def document(self) -> dict[str, int]:
        total = self.prompt_tokens + self.completion_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": total,
        }


@dataclass(slots=True)
class _Pending:
    """Tokens not yet reported, with the offset in the choice's text at which each begins."""

    decoded: int = 0  # characters decoded so far, sent or not
    sent: int = 0
    tokens: list[tuple[int, Token]] = field(default_factory=list)

    def add(self, token: Token, text: str) -> None:
        self.tokens.append((self.decoded, token))
        self.decoded += len(text)

    def send(self, text: str) -> Delta:
        """The delta for `text`, with the tokens whose text it reaches."""
        self.sent += len(text)
        ready = [pair for pair in self.tokens if pair[0] < self.sent]
        self.tokens = self.tokens[len(ready) :]
        return _delta(text, ready)

    def rest(self) -> Delta:
        return _delta("", self.tokens)


def _delta(text: str, tokens: Sequence[tuple[int, Token]]) -> Delta:
    return Delta(text, tuple(token for _, token in tokens), tuple(start for start, _ in tokens))


async def deltas(
    tokens: AsyncGenerator[Token | Finish],
    stops: Sequence[str],
    usage: Usage,
    eos_token_ids: frozenset[int] = frozenset(),
    detokenizer: Detokenizer | None = None,
) -> AsyncGenerator[Delta]:
    """One choice from its tokens, each counted in `usage`; closing it aborts generation.

    `detokenizer`: of tokens that come without their text.
    """
    stop_filter, pending = StopFilter(stops), _Pending()
    finish: FinishReason = "length"
    count = 0
    async with aclosing(tokens):
        async for token in tokens:
            if isinstance(token, Finish):
                finish = token.reason
                usage.completion_tokens += 0 if token.tokens is None else token.tokens - count
                break
            count += token.count
            usage.completion_tokens += token.count
            if token.id in eos_token_ids:
                finish = "stop"
                break
            text = token.text
            if text is None:
                assert detokenizer is not None, "tokens without text"
                text = detokenizer.feed(token.id)
            pending.add(token, text)
            if sendable := stop_filter.feed(text):
                yield pending.send(sendable)
            if stop_filter.stopped:
                finish = "stop"
                break
    if held := stop_filter.flush():
        yield pending.send(held)
    # After a stop string, what is left are the tokens that spell it: the client doesn't see those.
    yield replace(Delta() if stop_filter.stopped else pending.rest(), finish_reason=finish)


async def gather(stream: AsyncIterator[Delta]) -> Delta:
    """A whole choice as one delta."""
    text: list[str] = []
    tokens: list[Token] = []
    starts: list[int] = []
    finish_reason: FinishReason | None = None
    async for delta in stream:
        text.append(delta.text)
        tokens.extend(delta.tokens)
        starts.extend(delta.starts)
        finish_reason = delta.finish_reason
    return Delta("".join(text), tuple(tokens), tuple(starts), finish_reason)

"""One request for an answer, from when its key is known to its end."""

import time
from collections.abc import Callable

from starlette.types import Message, Send

from app.access.keys import Key
from app.access.rates import Allowance, Headers
from app.access.usage import AnswerTokens
from app.routing.request import EMBEDDING, Request, most_tokens

Clock = Callable[[], int]

_FREE = frozenset({"tokenize", "detokenize"})  # of tokens: they ask no model


class Visit:
    """Of a key without limits: nothing is counted."""

    def __init__(self, key: Key) -> None:
        self.key = key

    def listen(self, send: Send) -> Send:
        """`send`, through which the answer has to go."""
        return send

    def enter(self, request: Request, default_max_tokens: int) -> Headers:
        """Count a request in, once it is known what it asks; headers for its answer, an error's too.

        Raises:
            ApiError: 429; a limit is reached.
        """
        return {}

    def leave(self) -> None:
        """The answer has ended, in whatever way."""


class LimitedVisit(Visit):
    """Of a key with limits."""

    def __init__(self, key: Key, allowance: Allowance, clock: Clock = time.monotonic_ns) -> None:
        super().__init__(key)
        self._allowance = allowance
        self._clock = clock
        self._reserved = 0
        self._answer: AnswerTokens | None = None  # once it is counted in

    def listen(self, send: Send) -> Send:
        if not self._allowance.counts_tokens:
            return send

        async def listening(message: Message) -> None:
            if self._answer is not None:
                if message["type"] == "http.response.start":
                    self._answer.start(message["status"])
                else:
                    self._answer.body(message.get("body", b""), more=message.get("more_body", False))
            await send(message)

        return listening

    def enter(self, request: Request, default_max_tokens: int) -> Headers:
        now = self._clock()
        self._reserved = self._allowance.enter(tokens_of(request, default_max_tokens), now)
        self._answer = AnswerTokens(0 if request.endpoint in _FREE else request.prompt_tokens)
        return self._allowance.headers(now)

    def leave(self) -> None:
        if self._answer is None:
            return
        self._allowance.leave()
        actual = self._answer.total()
        if actual is not None:
            self._allowance.settle(self._reserved, actual, self._clock())
        self._answer = None


def tokens_of(request: Request, default_max_tokens: int) -> int:
    """Most tokens that a request takes, its prompt's being an estimate."""
    if request.endpoint in _FREE:
        return 0
    if request.endpoint in EMBEDDING:
        return request.prompt_tokens
    return most_tokens(request.prompt_tokens, request.max_tokens, request.choices, default_max_tokens)

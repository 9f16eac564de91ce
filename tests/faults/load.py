"""Many requests by many clients, and what became of each: answered, told of a failure, cut off, or answered wrongly."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

TOKENS = 20  # of each answer, where nobody says how many
PATIENCE_S = 60.0
PROMPTS = tuple(f"Tell me of the {thing}." for thing in ("sea", "moon", "rain", "wind", "snow", "sun", "fog", "sky"))

Texts = Mapping[str, str]  # by prompt


@dataclass(slots=True)
class Tally:
    """What became of requests."""

    answered: Counter[str] = field(default_factory=Counter)  # by pool
    told: Counter[str] = field(default_factory=Counter)  # of an error, by its code
    cut: Counter[str] = field(default_factory=Counter)  # off, without a word: the connection ended before the answer
    wrong: Counter[str] = field(default_factory=Counter)  # a false success, or no end: by what was seen
    attempts: Counter[int] = field(default_factory=Counter)  # of those that were answered
    pools: list[str] = field(default_factory=list)  # of the answers, in their order

    @property
    def all(self) -> int:
        return sum(map(Counter.total, (self.answered, self.told, self.cut, self.wrong)))

    def counts(self) -> dict[str, int]:
        """For the report."""
        by = {"told": self.told, "cut": self.cut, "wrong": self.wrong}
        found = {f"{kind} {name}": count for kind, each in by.items() for name, count in sorted(each.items())}
        return {"requests": self.all, "answered": self.answered.total(), **found}


async def nothing() -> None:
    """No fault."""


class Clients:
    """So many clients that ask a model again and again, every second time for a stream."""

    def __init__(
        self,
        url: str,
        model: str,
        clients: int,
        texts: Texts | None = None,
        tokens: int = TOKENS,
        fields: Mapping[str, object] | None = None,
    ) -> None:
        """`texts`: what simulated engines answer to `PROMPTS` of `TOKENS` tokens; another text is wrong. `fields`: more
        of each request."""
        self.tally = Tally()
        self._url = f"{url}/v1/chat/completions"
        self._model = model
        self._clients = clients
        self._texts = texts
        self._tokens = tokens
        self._fields = fields or {}
        self._left = 0
        self._fault: Callable[[], Awaitable[None]] = nothing
        self._fault_at = 0
        self._injected: asyncio.Task[None] | None = None

    async def run(self, requests: int, fault: Callable[[], Awaitable[None]] = nothing) -> Tally:
        """Ask so many times; the fault begins after a quarter of them, and they go on until it has ended."""
        self._left = requests
        self._fault, self._fault_at = fault, requests - requests // 4
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(*(self._keep_asking(session, number) for number in range(self._clients)))
        if self._injected is not None:
            await self._injected
        return self.tally

    async def at_once(self, prompt: str) -> None:
        """One stream for each client, all at the same time."""
        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(self.ask(session, prompt, stream=True) for _ in range(self._clients)))

    def stop(self) -> None:
        """Ask no more; what has begun ends."""
        self._left = 0

    async def _keep_asking(self, session: aiohttp.ClientSession, number: int) -> None:
        while self._left > 0 or not (self._injected is None or self._injected.done()):
            self._left -= 1
            if self._left == self._fault_at:
                self._injected = asyncio.ensure_future(self._fault())
            await self.ask(session, PROMPTS[self._left % len(PROMPTS)], stream=(self._left + number) % 2 == 0)

    async def ask(self, session: aiohttp.ClientSession, prompt: str, *, stream: bool) -> None:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": self._tokens,
            "stream": stream,
            "temperature": 0,  # the prompt alone decides
            **self._fields,
            **({"stream_options": {"include_usage": True}} if stream else {}),
        }
        try:
            async with asyncio.timeout(PATIENCE_S), session.post(self._url, json=body) as answer:
                self._take(answer, await answer.read(), prompt, stream=stream)
        except TimeoutError:
            self.tally.wrong[f"no end within {PATIENCE_S:.0f} s"] += 1
        except aiohttp.ClientError as error:
            self.tally.cut[type(error).__name__] += 1

    def _take(self, answer: aiohttp.ClientResponse, body: bytes, prompt: str, *, stream: bool) -> None:
        try:
            text, last = _streamed(body) if stream and answer.status == 200 else _whole(body)
        except ValueError as error:
            self.tally.wrong[f"{answer.status}: {error}: {body[-60:]!r}"] += 1
            return
        if "error" in last:
            self.tally.told[str(last["error"]["code"])] += 1
        elif last["usage"]["completion_tokens"] != self._tokens:
            self.tally.wrong[f"not {self._tokens} tokens"] += 1
        elif self._texts is not None and text != self._texts[prompt]:
            self.tally.wrong["another text"] += 1
        else:
            pool = answer.headers["x-enginehouse-pool"]
            self.tally.answered[pool] += 1
            self.tally.pools.append(pool)
            self.tally.attempts[int(answer.headers["x-enginehouse-attempts"])] += 1


async def learn(url: str, model: str) -> Texts:
    """What a simulated engine answers to `PROMPTS`."""
    found = {}
    async with aiohttp.ClientSession() as session:
        for prompt in PROMPTS:
            body = {
                "model": model,
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": TOKENS,
                "temperature": 0,
            }
            async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                found[prompt], _ = _whole(await answer.read())
    return found


def _whole(body: bytes) -> tuple[str, dict[str, Any]]:
    """A whole answer's text, and what it says of itself.

    Raises:
        ValueError: it is none.
    """
    document: dict[str, Any] = json.loads(body)
    if "error" in document:
        return "", document
    return document["choices"][0]["message"]["content"], document


def _streamed(body: bytes) -> tuple[str, dict[str, Any]]:
    """As `_whole`, of a stream: an error ends it without the mark of the end, and nothing else does.

    Raises:
        ValueError: it ends otherwise.
    """
    *events, rest = body.split(b"\n\n")
    done = events[-1:] == [b"data: [DONE]"]
    documents = [json.loads(event.removeprefix(b"data: ")) for event in (events[:-1] if done else events)]
    if rest or not documents or done == ("error" in documents[-1]):
        raise ValueError("a wrong end")
    chunks = [choice["delta"] for document in documents for choice in document.get("choices", [])]
    return "".join(chunk.get("content") or "" for chunk in chunks), documents[-1]

"""Many requests by many clients, and what became of each: answered, told of a failure, cut off, or answered wrongly."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp

TOKENS = 20  # of each answer, where nobody says how many
PATIENCE_S = 60.0


@dataclass(slots=True)
class Tally:
    """What became of requests."""

    answered: Counter[str] = field(default_factory=Counter)  # by pool
    told: Counter[str] = field(default_factory=Counter)  # of an error, by its code
    cut: Counter[str] = field(default_factory=Counter)  # off, without a word: the connection ended before the answer
    wrong: Counter[str] = field(default_factory=Counter)  # a false success, or no end: by what was seen
    attempts: Counter[int] = field(default_factory=Counter)  # of those that were answered

    @property
    def all(self) -> int:
        return sum(map(Counter.total, (self.answered, self.told, self.cut, self.wrong)))


class Clients:
    """So many clients that ask a model again and again, every second one for a stream."""

    def __init__(self, url: str, model: str, clients: int, tokens: int = TOKENS) -> None:
        self.tally = Tally()
        self._url = f"{url}/v1/chat/completions"
        self._model = model
        self._clients = clients
        self._tokens = tokens
        self._left = 0
        self._fault: Callable[[], object] = lambda: None
        self._fault_at = 0

    async def run(self, requests: int, fault: Callable[[], object] = lambda: None) -> Tally:
        """Ask so many times; the fault is injected after a quarter of them."""
        self._left = requests
        self._fault, self._fault_at = fault, requests - requests // 4
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(*(self._keep_asking(session, number) for number in range(self._clients)))
        return self.tally

    def stop(self) -> None:
        """Ask no more; what has begun ends."""
        self._left = 0

    async def _keep_asking(self, session: aiohttp.ClientSession, number: int) -> None:
        while self._left > 0:
            self._left -= 1
            if self._left == self._fault_at:
                self._fault()
            await self._ask(session, stream=(self._left + number) % 2 == 0)

    async def _ask(self, session: aiohttp.ClientSession, *, stream: bool) -> None:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": f"Request {self._left}."}],
            "max_tokens": self._tokens,
            "stream": stream,
            **({"stream_options": {"include_usage": True}} if stream else {}),
        }
        try:
            async with asyncio.timeout(PATIENCE_S), session.post(self._url, json=body) as answer:
                self._take(answer, await answer.read(), stream=stream)
        except TimeoutError:
            self.tally.wrong[f"no end within {PATIENCE_S:.0f} s"] += 1
        except aiohttp.ClientError as error:
            self.tally.cut[type(error).__name__] += 1

    def _take(self, answer: aiohttp.ClientResponse, body: bytes, *, stream: bool) -> None:
        last = _last(body) if stream and answer.status == 200 else body
        try:
            document = json.loads(last)
        except ValueError:
            self.tally.wrong[f"{answer.status}: ends with {body[-60:]!r}"] += 1
            return
        if "error" in document:
            self.tally.told[str(document["error"]["code"])] += 1
        elif document.get("usage", {}).get("completion_tokens") != self._tokens:
            self.tally.wrong[f"not {self._tokens} tokens: {last[:200]!r}"] += 1
        else:
            self.tally.answered[answer.headers["x-enginehouse-pool"]] += 1
            self.tally.attempts[int(answer.headers["x-enginehouse-attempts"])] += 1


def _last(body: bytes) -> bytes:
    """The data of a stream's last event, before the mark of its end if it has that; what has both isn't JSON."""
    events = body.split(b"\n\n")
    if events[-1]:
        return events[-1]
    done = events[-2:] == [b"data: [DONE]", b""]
    last = events[-3 if done else -2]
    failed = last.startswith(b'data: {"error"')
    return last.removeprefix(b"data: ") if done != failed else b"a wrong end: " + last

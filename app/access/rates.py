"""How much a key may ask for, on one ingress replica: counting, with the time given. All times are in nanoseconds.

Exact: a replica never lets in more than its share, and after `retry-after` there is room, if nobody else took it.
Approximate: how requests spread over replicas, so a key may be refused by one whose share is used up while another's
isn't; and tokens, which are estimated until an answer has ended.
"""

from typing import NamedTuple

from app.access.bucket import SECOND, Bucket, duration
from app.access.keys import Key, Limits
from app.admission.budget import ALONE, Place, share_of
from deployments.errors import ApiError

Headers = dict[str, str]


class _Lack(NamedTuple):
    """A limit that a request doesn't fit into now."""

    wait: int
    share: int  # this replica's
    what: str  # the limit and what is left of it, in words


class Allowance:
    """What is left of a key's limits."""

    def __init__(self, key: Key, now: int, place: Place = ALONE) -> None:
        self.running = 0
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self.set(key, now, place)

    def set(self, key: Key, now: int, place: Place) -> None:
        """Other limits, or another share of them, from now on; what is used up and under way stays so."""
        self._name, self._limits, self._place = key.name, key.limits, place
        self._requests = _moved(self._requests, share_of(key.limits.requests_per_minute, place), now)
        self._tokens = _moved(self._tokens, share_of(key.limits.tokens_per_minute, place), now)
        self._most_running = share_of(key.limits.max_concurrent, place)

    @property
    def counts_tokens(self) -> bool:
        return self._tokens is not None

    def enter(self, tokens: int, now: int) -> int:
        """Count a request in, with the tokens that it may take. Those that were counted in: at most a minute's, so that
        one request that says nothing of what it took holds up its key no longer.

        Raises:
            ApiError: 429; a limit is reached, and nothing was counted.
        """
        if self._tokens is not None:
            tokens = min(tokens, self._tokens.per_minute)
        if (lack := self._lack(tokens, now)) is not None:
            raise self._refused(lack, now)
        self.running += 1
        if self._requests is not None:
            self._requests.take(1, now)
        if self._tokens is not None:
            self._tokens.take(tokens, now)
        return tokens

    def leave(self) -> None:
        """A request that was counted in has ended."""
        self.running -= 1

    def settle(self, reserved: int, actual: int, now: int) -> None:
        """A request took so many tokens, instead of those that were counted in for it."""
        if self._tokens is not None:
            self._tokens.take(actual - reserved, now)

    def headers(self, now: int) -> Headers:
        """What is left, as OpenAI's API tells it: the key's limit, and what remains of this replica's share."""
        told: Headers = {}
        for noun, limit, bucket in (
            ("requests", self._limits.requests_per_minute, self._requests),
            ("tokens", self._limits.tokens_per_minute, self._tokens),
        ):
            if bucket is not None:
                told[f"x-ratelimit-limit-{noun}"] = str(limit)
                told[f"x-ratelimit-remaining-{noun}"] = str(bucket.remaining(now))
                told[f"x-ratelimit-reset-{noun}"] = duration(bucket.full_in(now))
        return told

    def _lack(self, tokens: int, now: int) -> _Lack | None:
        """The limit that a request has to wait for longest; None if it fits into all."""
        limits = self._limits
        if self._most_running is not None and self.running >= self._most_running:
            return _Lack(SECOND, self._most_running, f"{limits.max_concurrent} requests under way, and has them")
        lacks = []
        if (bucket := self._requests) is not None and (wait := bucket.wait(1, now)):
            what = f"{limits.requests_per_minute} requests a minute, and {bucket.remaining(now)} are left"
            lacks.append(_Lack(wait, bucket.per_minute, what))
        if (bucket := self._tokens) is not None and (wait := bucket.wait(tokens, now)):
            left = f"{bucket.remaining(now)} are left, and this request counts for {tokens}"
            lacks.append(_Lack(wait, bucket.per_minute, f"{limits.tokens_per_minute} tokens a minute; {left}"))
        return max(lacks, default=None)

    def _refused(self, lack: _Lack, now: int) -> ApiError:
        retry_after_s = max(1, -(-lack.wait // SECOND))
        part = f" (this ingress replica's share is {lack.share})" if self._place.replicas > 1 else ""
        message = (
            f"Rate limit reached: the key '{self._name}' may have {lack.what}{part}. Try again in {retry_after_s} s."
        )
        headers = {"retry-after": str(retry_after_s), **self.headers(now)}
        return ApiError(429, message, type="rate_limit_error", code="rate_limit_exceeded", headers=headers)


class Allowances:
    """Of all keys that have limits, on this replica."""

    def __init__(self) -> None:
        self._of: dict[str, Allowance] = {}
        self._set: dict[str, tuple[Limits, Place]] = {}
        self.place = ALONE

    def of(self, key: Key, now: int) -> Allowance:
        """A key's, by its name: what is used up stays so when its limits change."""
        wanted = key.limits, self.place
        if key.name not in self._of:
            self._of[key.name] = Allowance(key, now, self.place)
        elif self._set[key.name] != wanted:
            self._of[key.name].set(key, now, self.place)
        self._set[key.name] = wanted
        return self._of[key.name]

    def keep(self, names: frozenset[str]) -> None:
        """Forget the keys that aren't there any more."""
        for name in self._of.keys() - names:
            del self._of[name], self._set[name]


def _moved(bucket: Bucket | None, per_minute: int | None, now: int) -> Bucket | None:
    if per_minute is None:
        return None
    if bucket is None:
        return Bucket(per_minute, now)
    bucket.set(per_minute, now)
    return bucket

"""One request on its way through the pools of its route, until the answer of one of them begins."""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException

from app.calls import PoolStream
from app.patience import Patience
from app.pools import PoolDirectory
from app.resilience.attempts import Attempts
from app.resilience.breaker import Trial
from app.routing.route import Routed
from deployments.errors import ApiError, unavailable
from deployments.plane.hub import StreamLostError
from deployments.replica_choice.prefix import prompt_blocks
from deployments.replica_choice.routers import NoReplicaError
from deployments.wire import WireRequest, WireResponse

logger = logging.getLogger("ray.serve")

LOST = (RayError, RayServeException, StreamLostError)  # what asking a pool raises that gives no answer
FAILED = frozenset({502, 503, 504})  # what a pool answers that another may answer better
BUSY = 429

Answer = PoolStream | WireResponse
Told = dict[str, str]  # headers that say where a request went, and why


@dataclass(frozen=True, slots=True)
class Begun:
    """An answer that has begun, and how its pool does."""

    answer: Answer
    trial: Trial


@dataclass(slots=True)
class Asking:
    """A request, and the pools that it may still be sent to."""

    ask: Callable[[str, WireRequest], Awaitable[Answer]]
    pools: PoolDirectory
    routed: Routed
    wire: WireRequest
    told: Told
    patience: Patience
    attempts: Attempts
    retry_after_s: int

    async def attempt(self, pool: str) -> Begun | None:
        """Ask a pool; None: it didn't answer, and another is to be asked.

        Raises:
            ApiError: it didn't, and there is no other.
        """
        trial = self.pools.breakers.of(pool).begin(self._now_s())
        if trial is None:  # another request tries it just now
            self._pass_over(pool, unavailable(f"The pool '{pool}' fails.", "pool_failing", self.retry_after_s))
            return None
        self.attempts.made += 1
        self.told |= {"x-enginehouse-pool": pool, "x-enginehouse-attempts": str(self.attempts.made)}
        if self.pools.chooses_by_prefix(pool):
            # By the pool's name: it has one model, which clients may know by several.
            document = vars(self.routed.request.document)
            self.wire["prefix"] = prompt_blocks(self.wire["endpoint"], document, pool, self.routed.adapter)
        try:
            answer = await self._begin(pool, trial)
            if answer is None or self._is_last_word(pool, answer, trial):
                return None if answer is None else Begun(answer, trial)
        except BaseException:
            trial.end()
            raise
        trial.end()
        if isinstance(answer, PoolStream):
            answer.leave()
        return None

    async def _begin(self, pool: str, trial: Trial) -> Answer | None:
        """What a pool answers, from its first byte on; None, or an error, as `attempt`."""
        try:
            async with self.patience.begins(stream=self.routed.request.stream):
                return await self.ask(pool, self.wire)
        except BackPressureError as error:
            message = f"The pool '{pool}' has as many requests as it may queue."
            headers = {"retry-after": str(self.retry_after_s)}
            full = ApiError(429, message, type="rate_limit_error", code="queue_full", headers=headers)
            self._pass_over(pool, full, error)
            return None
        except NoReplicaError as error:
            self.pools.look_soon()
            message = f"The pool '{pool}' has no replica at present."
            self._pass_over(pool, unavailable(message, "pool_not_ready", self.retry_after_s), error)
            return None
        except LOST as error:
            # Serve itself takes a replica out that is gone: that says nothing of the others.
            logger.warning("pool %s gave no answer: %r", pool, error)
            self.pools.look_soon()
            self.attempts.failed(pool, again=self.pools.state(pool).replicas > 1)
            if not self.attempts.over:
                return None
            message = f"The pool '{pool}' lost the replica that had this request."
            raise unavailable(message, "replica_lost", self.retry_after_s) from error
        except ApiError as error:
            if error.code == "first_token_timeout":
                trial.failed(self._now_s())
            elif error.code == "total_timeout":
                trial.ran_out(self._now_s())
            raise

    def _pass_over(self, pool: str, told: ApiError, cause: Exception | None = None) -> None:
        """
        Raises:
            ApiError: `told`, where there is no other pool.
        """
        self.attempts.passed_over(pool)
        if self.attempts.over:
            raise told from cause

    def _is_last_word(self, pool: str, answer: Answer, trial: Trial) -> bool:
        """Whether an answer is for the client: it is none of failure, or there is no other pool."""
        status = answer.head["status"] if isinstance(answer, PoolStream) else answer["status"]
        if status in FAILED:
            trial.failed(self._now_s())
            self.attempts.failed(pool)
        else:
            trial.succeeded(self._now_s())
            if status != BUSY:
                return True
            self.attempts.passed_over(pool)
        return self.attempts.over

    def _now_s(self) -> float:
        return self.patience.loop.time()

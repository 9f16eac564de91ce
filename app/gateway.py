"""What the endpoints share: the live configuration, the pools, and the way to ask them."""

import logging
import time
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

from ray.util.metrics import Counter
from starlette.types import Receive, Scope, Send

from app.access.access import Access
from app.access.keys import may_ask
from app.access.visit import Visit
from app.admission.gate import Applicant, Gate, Ticket
from app.asgi import read_body, send_stream, send_whole
from app.asking import Answer, Asking, Begun, Told
from app.calls import Caller, PoolStream
from app.capabilities import model_document
from app.config import IngressConfig
from app.patience import Patience
from app.pools import PoolDirectory
from app.resilience.attempts import Attempts
from app.resilience.breaker import Trial
from app.routing import names
from app.routing.decide import Caller as Client
from app.routing.request_type import Seen
from app.routing.route import Routed, pools_of, route
from app.shadow import Shadows
from deployments.engine import Endpoint, EngineRequest
from deployments.errors import ApiError, anthropic_error_event, error_event, unavailable
from deployments.wire import WireRequest, pack

logger = logging.getLogger("ray.serve")


class Gateway:
    """Takes requests to pools, and their answers back."""

    def __init__(self, pools: PoolDirectory, caller: Caller | None = None, access: Access | None = None) -> None:
        self.config = IngressConfig()
        self.pools = pools
        self.caller = caller or Caller()
        self.shadows = Shadows()
        self.seen = Seen()
        self.gate = Gate()
        self.access = access or Access()
        self.started = int(time.time())
        self._broken_streams = Counter(
            "enginehouse_streams_broken_total",
            description="Streams that were broken off after they had begun, by the code that says why.",
            tag_keys=("pool", "code"),
        )

    def configure(self, config: IngressConfig) -> None:
        """Another configuration, from now on; requests that are under way keep what they were routed by."""
        self.config = config
        self.gate.set(config.admission)
        self.access.configure(config.access)
        self.pools.breakers.set(config.resilience.breaker)
        self.pools.look_soon()

    async def answer(
        self, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send, told: Told, visit: Visit
    ) -> None:
        """Route a request to a pool, in one handle call, and pass its answer back.

        `told` becomes what the answer's headers say of that, an error's too.

        Raises:
            ApiError: it can't be; nothing was sent.
        """
        body = await read_body(receive, self.config.max_body_bytes, self.config.body_timeout_s)
        patience = Patience(self.config.admission.timeouts)
        key = visit.key
        routed = route(
            self.config,
            endpoint,
            body,
            scope["headers"],
            self.pools,
            self.seen,
            Client(key.name, key.tenant),
            permit=lambda model: may_ask(key, model, self.knows),
        )
        told.update(routed.told)
        pools = [pool.name for pool in routed.decision.pools]
        if not pools:
            raise self._none_is_ready(routed)
        told |= visit.enter(routed.request, self.config.admission.default_max_tokens)
        wire = pack(EngineRequest(endpoint, routed.body, "", routed.adapter))
        asking = Asking(
            partial(self._ask_pool, stream=routed.request.stream),
            self.pools,
            routed,
            wire,
            told,
            patience,
            Attempts(pools, self.config.resilience.max_attempts),
            self.config.retry_after_s,
        )
        await self._through_pools(asking, send, key.name)

    async def _through_pools(self, asking: Asking, send: Send, key: str) -> None:
        """Ask one pool after the other, each when its turn has come, until one answers."""
        routed = asking.routed
        shadow, waited_s, begun = routed.decision.shadow, 0.0, None
        while begun is None:
            ticket = await self._admit(routed, asking.attempts.left, key)
            waited_s += ticket.waited_s if ticket else 0.0
            asking.told["x-enginehouse-queue-ms"] = str(round(waited_s * 1000))
            try:
                if shadow is not None:
                    self.shadows.send(shadow, self._copy(shadow, asking.wire, stream=routed.request.stream))
                    shadow = None
                begun = await asking.attempt(ticket.pool if ticket else asking.attempts.left[0])
                if begun is not None:
                    await self._send(send, begun, asking, ticket)
            finally:
                if ticket is not None:
                    ticket.give_back()

    async def _send(self, send: Send, begun: Begun, asking: Asking, ticket: Ticket | None) -> None:
        try:
            if isinstance(begun.answer, PoolStream):
                broken = anthropic_error_event if asking.wire["endpoint"] == "messages" else error_event
                left = ticket.give_back if ticket is not None else None
                broke = partial(self._broke, begun.trial, asking)
                await send_stream(send, begun.answer, asking.told, broken, asking.patience, left, broke)
            else:
                await send_whole(send, begun.answer, asking.told)
        finally:
            begun.trial.end()

    def _broke(self, trial: Trial, asking: Asking, code: str) -> None:
        """A stream did, after it had begun."""
        if code == "between_tokens_timeout":
            trial.failed(asking.patience.loop.time())
        self._broken_streams.inc(tags={"pool": asking.told["x-enginehouse-pool"], "code": code})

    async def _admit(self, routed: Routed, pools: Sequence[str], key: str) -> Ticket | None:
        """The right to ask a pool; None where there are no limits."""
        if not self.gate.limits:
            return None
        asked = routed.request
        cost = self.gate.cost(asked.prompt_tokens, asked.max_tokens, asked.choices)
        return await self.gate.enter(pools, Applicant(routed.kind, key, asked.model, cost))

    async def _ask_pool(self, pool: str, wire: WireRequest, *, stream: bool) -> Answer:
        """
        Raises:
            BackPressureError: it may queue no more.
            RayError, RayServeException, StreamLostError: it gave no answer.
        """
        # An id of our own: engines need it unique, and a client may choose Serve's by sending x-request-id.
        wire = {**wire, "request_id": uuid.uuid4().hex}
        handle = self.pools.handle(pool)
        if stream:
            return await self.caller.stream(pool, handle, wire, plane=self.config.token_plane)
        return await self.caller.whole(handle, wire)

    def _none_is_ready(self, routed: Routed) -> ApiError:
        states = ", ".join(f"'{over.pool}' is {over.why}" for over in routed.decision.passed_over)
        message = f"No pool of '{routed.request.model}' is ready: {states}."
        return unavailable(message, "pool_not_ready", self.config.retry_after_s)

    async def _copy(self, pool: str, wire: WireRequest, *, stream: bool) -> None:
        """Have a pool answer a copy of a request, and throw the answer away."""
        answer = await self._ask_pool(pool, wire, stream=stream)
        if isinstance(answer, PoolStream):
            try:
                while await answer.read():
                    pass
            finally:
                answer.leave()

    def adapters(self) -> dict[str, Sequence[str]]:
        """The adapters that clients may name, each with its pools."""
        return names.exposed_adapters(self.pools.adapters(), self.config.models)

    def knows(self, name: str) -> bool:
        """Whether there is a model, an adapter or an alias of that name."""
        target = names.resolve(name, self.config.aliases, self.config.models, 0)
        return target in self.config.models or target in self.adapters()

    def model_document(self, name: str) -> dict[str, Any]:
        """What is known of a model or an adapter.

        Raises:
            ApiError: 404, there is none of that name.
        """
        config = self.config
        target = names.resolve(name, config.aliases, config.models, 0)
        serving = pools_of(config, target, self.pools)
        pools = [self.pools.document(pool) for pool in serving]
        openai = {"object": "model", "created": self.started, "owned_by": "enginehouse"}
        if target != name:
            openai["root"] = target
        elif name not in config.models:
            openai |= dict.fromkeys(("root", "parent"), names.parent_of(serving, config.models))
        return {**model_document(name, pools), **openai}

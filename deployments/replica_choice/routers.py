"""The policies as Serve's request routers, which run in whichever process has a handle of the pool: the ingress.

Under HAProxy, Serve refuses a router that isn't its own for the deployment where an application's requests come in: by
HTTP, HAProxy would choose. It doesn't see that a pool's come by its handle. And a class that is put into a deployment's
config is lost when the config file overrides anything of that deployment, such as `num_replicas`. So the config has
only settings, which Serve's own router ignores, and the ingress finds the class to them: see `install`.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import RayServeException
from ray.serve.request_router import FIFOMixin, PendingRequest, ReplicaID, RequestRouter, RunningReplica

from deployments.replica_choice.policy import ByPrefix, LeastOutstanding, Policy
from deployments.replica_choice.settings import PrefixSettings

SETTING = "replica_choice"  # which router it is, among a router's settings
NO_REPLICA_S = 1.0  # that a pool may be without one before requests are refused; Serve's own news takes a part of that


class NoReplicaError(RayServeException):
    """A pool has no replica, so a request wasn't sent. Serve would have it wait for as long as one takes to start."""


class PolicyRouter(RequestRouter):
    """Has a policy choose, and tells it how each request goes.

    A request is in the policy's loads from when a replica is chosen for it (`_chosen`, so that requests that come
    together see each other), then from when it is sent until it has ended, in whichever way. Without a
    replica, requests are refused, for another pool may answer them.
    """

    policy: Policy

    def initialize_state(self, **kwargs: Any) -> None:
        """Called by Serve, with the router's settings."""
        raise NotImplementedError

    def _start(self, policy: Policy, now_s: Callable[[], float] = time.monotonic) -> None:
        self.policy = policy
        self._now_s = now_s
        self._chosen: dict[asyncio.Future[Any], str] = {}  # by requests that aren't on their way yet
        self._refusing: asyncio.TimerHandle | None = None

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> RunningReplica:
        """
        Raises:
            NoReplicaError: there was none for `NO_REPLICA_S`.
        """
        self._refuse_later()
        try:
            return await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        except NoReplicaError:
            self._remove_pending_request_from_indices(pending_request)
            raise

    def _refuse_later(self) -> None:
        if not self.curr_replicas and self._refusing is None:
            self._refusing = self._event_loop.call_later(NO_REPLICA_S, self._refuse)

    def _refuse(self) -> None:
        """Tell all that wait, if there is still no replica for them."""
        self._refusing = None
        if self.curr_replicas:
            return
        for request in self._pending_requests_to_fulfill:
            if not request.future.done():
                request.future.set_exception(NoReplicaError(f"no replica of {self.app_name} for {NO_REPLICA_S:g} s"))
        self._pending_requests_to_fulfill.clear()
        self._pending_requests_to_route.clear()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replica that the policy chooses, and then, should Serve find that it can't be had, all others."""
        names = [replica.replica_id.unique_id for replica in candidate_replicas]
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # else Serve asks again and again without a pause
            self._settle(pending_request.future)  # what was chosen before couldn't be had
        open_ = self._open(candidate_replicas, names)
        if not open_:
            return [candidate_replicas]  # Serve asks whether they are as full as is thought
        blocks = _blocks(pending_request)
        choice = self.policy.choose([names[index] for index in open_], blocks, self._now_s())
        index = open_[choice.index]
        if pending_request is not None:
            self._reserve(pending_request.future, names[index])
        return [[candidate_replicas[index]], [*candidate_replicas[:index], *candidate_replicas[index + 1 :]]]

    def _open(self, replicas: Sequence[RunningReplica], names: Sequence[str]) -> list[int]:
        """Those that have room, by their index."""
        loads = self.policy.loads.of(names, self._now_s())
        return [index for index, load in enumerate(loads) if load < replicas[index].max_ongoing_requests]

    def _reserve(self, future: "asyncio.Future[Any]", name: str) -> None:
        """Count a request that is about to be sent: Serve sends it only after others may have been chosen for. Once the
        future is done, it was sent and is counted for good, or was cancelled."""
        if future not in self._chosen:
            future.add_done_callback(self._settle)
        self._chosen[future] = name
        self.policy.loads.add(name)

    def _settle(self, future: "asyncio.Future[Any]") -> None:
        if name := self._chosen.pop(future, None):
            self.policy.loads.remove(name)

    def on_send_request(self, replica_id: ReplicaID) -> None:
        super().on_send_request(replica_id)
        self.policy.loads.add(replica_id.unique_id)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Called once for each request that was sent: answered, failed, cancelled, or refused by the replica."""
        self.policy.loads.remove(replica_id.unique_id)

    def on_new_queue_len_info(self, replica_id: ReplicaID, num_ongoing_requests: int) -> None:
        super().on_new_queue_len_info(replica_id, num_ongoing_requests)
        self.policy.loads.reported(replica_id.unique_id, num_ongoing_requests, self._now_s())

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        super().update_replicas(replicas)
        self._forget_gone()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._forget_gone()

    def _forget_gone(self) -> None:
        self._refuse_later()
        self.policy.forget_all_but([replica_id.unique_id for replica_id in self.curr_replicas])


class LeastOutstandingRouter(FIFOMixin, PolicyRouter):
    """`replica_choice: least_outstanding`. Whichever request has waited longest gets the replica that is found."""

    def initialize_state(self, **kwargs: Any) -> None:
        self._start(LeastOutstanding())


class PrefixRouter(PolicyRouter):
    """`replica_choice: prefix`. A replica that was chosen for one request goes to no other, as it would with Serve's
    `FIFOMixin` whenever replicas are full."""

    def initialize_state(self, **kwargs: Any) -> None:
        settings = {key: value for key, value in kwargs.items() if key != SETTING}
        self._start(ByPrefix(PrefixSettings.model_validate(settings)))


def _blocks(request: PendingRequest | None) -> Sequence[int]:
    """What the ingress says of a request's prompt; nothing for calls that aren't requests of clients."""
    wire = request.args[0] if request is not None and request.args else None
    blocks: Sequence[int] = wire.get("prefix", ()) if isinstance(wire, dict) else ()
    return blocks


ROUTERS: Mapping[str, type[PolicyRouter]] = {"least_outstanding": LeastOutstandingRouter, "prefix": PrefixRouter}


def install() -> None:
    """Have Serve, in this process, make these routers for handles of pools. A second time makes no difference."""
    RequestRouterConfig.get_request_router_class = _router_class  # type: ignore[method-assign,assignment]


_serves_own = RequestRouterConfig.get_request_router_class


def _router_class(config: RequestRouterConfig) -> Callable[..., Any]:
    router = ROUTERS.get(config.request_router_kwargs.get(SETTING, ""))
    return router or _serves_own(config)

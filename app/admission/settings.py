"""The settings of admission, typed."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from app.routing.settings import RequestType

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


class LimitConfig(BaseModel):
    """What may be under way at once, in all ingress replicas together."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_concurrent: int | None = Field(None, ge=1, description="Most requests that are being answered.")
    max_queued: int = Field(
        256,
        ge=0,
        description="Most requests that wait for one of those to end; a further one is a 429. So many of each: "
        "interactive, `batch` and `offline` ones.",
    )
    max_tokens_in_flight: int | None = Field(
        None,
        ge=1,
        description="Most tokens of the requests that are being answered: those of their prompts (estimated) and the "
        "most that they may generate.",
    )

    @property
    def limits(self) -> bool:
        return self.max_concurrent is not None or self.max_tokens_in_flight is not None


class HeadroomConfig(BaseModel):
    """What part of every limit a patient request leaves free, so that others find room."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    batch: Share = Field(0.2, description="A `batch` request.")
    offline: Share = Field(0.25, description="An `offline` request.")

    def of(self, kind: RequestType) -> float:
        return self.batch if kind == "batch" else self.offline if kind == "offline" else 0.0


class TimeoutsConfig(BaseModel):
    """How long a request may take, in seconds. Each says in its error that it was this one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    queue_s: Seconds = Field(60.0, description="For its turn to come, where a limit has it wait.")
    first_token_s: Seconds | None = Field(600.0, description="From its turn to the first token of a stream.")
    between_tokens_s: Seconds | None = Field(300.0, description="From each token of a stream to the next.")
    unread_s: Seconds | None = Field(
        60.0,
        description="For a client that has left so much of its stream unread that no more can be sent, to read on.",
    )
    total_s: Seconds | None = Field(None, description="From when the request has come to the end of its answer.")


class AdmissionConfig(BaseModel):
    """All that requests are admitted by."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pools: dict[str, LimitConfig] = Field({}, description="Limits of pools, by name.")
    models: dict[str, LimitConfig] = Field({}, description="Limits of models, by name, over all their pools.")
    headroom: HeadroomConfig = Field(
        HeadroomConfig(),
        description="What part of each limit a request that can wait leaves free for those that can't.",
    )
    default_max_tokens: int = Field(
        512, ge=1, description="Tokens that a request counts for which doesn't say how many it may generate."
    )
    timeouts: TimeoutsConfig = Field(TimeoutsConfig(), description="How long a request may take.")

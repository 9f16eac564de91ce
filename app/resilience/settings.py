"""The settings of resilience, typed."""

from pydantic import BaseModel, ConfigDict, Field


class BreakerConfig(BaseModel):
    """When a pool that answers badly is left alone, by each ingress replica for itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    window: int = Field(20, ge=1, le=1000, description="A pool's last answers, which are looked at.")
    min_failures: int = Field(
        5,
        ge=1,
        description="Failures among them from which the pool isn't asked for a while, if half of them are failures: "
        "answers of 502, 503 or 504, timeouts for the first or the next token, and for all of an answer where the pool "
        "answered nothing else in that time. More than `window`: it always is.",
    )
    open_s: float = Field(
        10.0,
        gt=0,
        le=3600,
        allow_inf_nan=False,
        description="Seconds for which it isn't asked. Then one request tries it: that opens it again, or it is left "
        "alone for twice as long, up to 16 times.",
    )


class ResilienceConfig(BaseModel):
    """What is done when a pool fails a request before the first byte of its answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_attempts: int = Field(
        3,
        ge=1,
        le=10,
        description="Most times that a request is sent to pools of its route which fail it. A pool that is full is no "
        "attempt.",
    )
    breaker: BreakerConfig = Field(BreakerConfig(), description="When a pool is left alone.")

"""The settings of the choice by prefix. They live in a pool's `args`; see deployments/config.py."""

from pydantic import BaseModel, ConfigDict, Field


class PrefixSettings(BaseModel):
    """How `replica_choice: prefix` weighs what a replica has in its cache against its load."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    min_match: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Share of a prompt that a replica has to have had before; with less, the least loaded one is "
        "taken.",
    )
    max_imbalance: float = Field(
        1.25,
        ge=1,
        description="Most load of a replica, by the mean of all: a request goes to none that it would take beyond "
        "that. The least loaded may always take one, and any replica two.",
    )
    memory: int = Field(
        65_536,
        ge=1,
        description="Most blocks of 256 bytes of prompts that each ingress process remembers, some 200 bytes each; "
        "the least recently used ones are forgotten.",
    )

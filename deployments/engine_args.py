"""What every engine's `engine_args` tell of the GPUs that a replica needs."""

from typing import Self

from pydantic import BaseModel, ConfigDict


class EngineArgs(BaseModel):
    """`engine_args` of an engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def gpus(self) -> int:
        """How many GPUs a replica needs where its pool doesn't say; 0: it runs on CPUs."""
        return 0

    def sharing(self, share: float) -> Self:
        """The same, for an engine that may use but a part of its GPU's memory, from 0 to 1."""
        return self

"""The settings of the ingress, typed. Each has its one home here; docs/configuration.md is made from this."""

import os
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from app.access.settings import AccessConfig
from app.admission.settings import AdmissionConfig
from app.resilience.settings import ResilienceConfig
from app.routing.settings import RoutingConfig

ENVIRONMENT_PREFIX = "ENGINEHOUSE_INGRESS_"


class IngressArgs(BaseModel):
    """`args` of the ingress's application: none. Its settings are its `user_config`, which can change live."""

    model_config = ConfigDict(extra="forbid")


class IngressConfig(RoutingConfig):
    """`user_config` of the ingress: changes live, without a restart."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    admission: AdmissionConfig = Field(
        AdmissionConfig(), description="Which requests may begin, and how long they take."
    )
    resilience: ResilienceConfig = Field(
        ResilienceConfig(), description="What is done when a pool fails a request before its answer begins."
    )
    access: AccessConfig = Field(AccessConfig(), description="Who may use the server.")
    max_body_bytes: int = Field(
        32 * 2**20, ge=1024, description="Largest request body, in bytes; a larger one is a 413."
    )
    body_timeout_s: float = Field(
        60.0,
        gt=0,
        le=86_400,
        allow_inf_nan=False,
        description="Seconds in which a request's body has to come; a slower one is a 408.",
    )
    retry_after_s: int = Field(
        5, ge=1, description="Seconds that a 503 tells a client to wait, where no pool is ready."
    )
    status_interval_s: float = Field(
        1.0, ge=0.1, description="Seconds between two looks at which pools are up; five times as long while all are."
    )
    token_plane: bool = Field(
        True,
        description="Streams come straight from replicas, by socket; false: by Ray, which costs several times the CPU.",
    )


def load_ingress_config(values: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> IngressConfig:
    """The configuration in `values`, with `ENGINEHOUSE_INGRESS_<KEY>` from the environment on top.

    Raises:
        pydantic.ValidationError: a value doesn't fit.
    """
    overrides = {name: environ[variable] for name, variable in environment_variables().items() if variable in environ}
    return IngressConfig.model_validate({**values, **overrides})


def environment_variables() -> dict[str, str]:
    """The variable that overrides each key of `IngressConfig` that is a plain value."""
    return {
        name: ENVIRONMENT_PREFIX + name.upper()
        for name, field in IngressConfig.model_fields.items()
        if field.annotation in (int, float, bool, str)
    }

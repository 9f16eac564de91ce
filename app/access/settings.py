"""The settings of access, typed: where keys are, and what is said of each."""

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from app.access.secret import PREFIX

# Plain enough for a log line, a header and a route's wildcards.
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]*$", max_length=64)]
Pattern = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Limit = Annotated[int, Field(ge=1, le=10**12)]
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
OURS = "ENGINEHOUSE_"


class KeyRecord(BaseModel):
    """What a keys file says of one key. It holds no secret."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    name: Name = Field(description="What errors, logs and metrics call it.")
    tenant: Name | None = Field(None, description="Whose it is; several keys may have one. Default: its name.")
    models: tuple[Pattern, ...] | None = Field(
        None,
        description="Models, aliases and adapters that it may ask for, as clients name them, also with wildcards "
        "(`llama-*`). Default: all; of an admin key: none.",
    )
    admin: bool = Field(
        False, description="Whether it may change the server: load and unload adapters. It sees every model."
    )
    requests_per_minute: Limit | None = Field(None, description="Most requests a minute.")
    tokens_per_minute: Limit | None = Field(None, description="Most tokens a minute, of prompts and answers.")
    max_concurrent: Limit | None = Field(None, description="Most requests that are under way.")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", repr=False, description="SHA-256 of the secret, in hexadecimal.")

    @field_validator("name", "tenant")
    @classmethod
    def _no_secret(cls, value: str | None) -> str | None:
        if value is not None and value.startswith(PREFIX):
            raise ValueError(f"what begins with '{PREFIX}' is a secret, and has no place here")
        return value


class AccessConfig(BaseModel):
    """Where the API keys are; or that everybody is let in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keys_file: str | None = Field(
        None,
        min_length=1,
        description="A YAML or JSON file of keys, by its absolute path, on each node that runs an ingress. Read again "
        "within seconds of a change.",
    )
    keys_env: str | None = Field(
        None,
        pattern=VARIABLE,
        description="Name of an environment variable with keys, as the file has them; besides the file, or instead.",
    )
    anonymous: bool = Field(
        False, description="Whether everybody is let in without a key, also where the server can be reached by others."
    )

    @field_validator("keys_file")
    @classmethod
    def _absolute(cls, value: str | None) -> str | None:
        if value is not None and not Path(value).is_absolute():
            raise ValueError("write the whole path, from '/' on: replicas run in folders of their own")
        return value

    @field_validator("keys_env")
    @classmethod
    def _not_ours(cls, value: str | None) -> str | None:
        if value is not None and value.startswith(OURS):
            raise ValueError(f"variables that begin with '{OURS}' are settings; choose another name")
        return value

    @model_validator(mode="after")
    def _one_or_the_other(self) -> Self:
        if self.anonymous and self.has_keys:
            raise ValueError("'anonymous: true' lets everybody in without a key; take it or the keys away")
        return self

    @property
    def has_keys(self) -> bool:
        """Whether it names a place where keys are."""
        return self.keys_file is not None or self.keys_env is not None

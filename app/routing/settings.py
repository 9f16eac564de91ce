"""The settings that requests are routed by, typed."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from deployments import registry
from deployments.capabilities import Need

RequestType = Literal["chat", "multi_turn", "batch", "offline", "embedding"]


def _one_or_more(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


# What can be put into a header.
PoolName = Annotated[str, StringConstraints(min_length=1, pattern=r"^[ -~]+$")]
Patterns = Annotated[tuple[str, ...], BeforeValidator(_one_or_more)]
Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Percent = Annotated[float, Field(ge=0, le=100)]


class RequestTypes(BaseModel):
    """From when on a request is of which type, where it doesn't say so itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    multi_turn_messages: int = Field(
        5, ge=2, description="Messages from which on a conversation is `multi_turn`; the system's counts."
    )
    multi_turn_prompt_tokens: int = Field(
        4096, ge=1, description="Tokens of the prompt (estimated) from which on a request is `multi_turn`."
    )
    shared_prefix_tokens: int = Field(
        512,
        ge=16,
        description="A request is `multi_turn`, too, where so many tokens (estimated) that its prompt begins with "
        "were seen before.",
    )
    batch_max_tokens: int = Field(
        1024, ge=1, description="Most tokens of the answer from which on a request that isn't streamed is `batch`."
    )
    characters_per_token: float = Field(
        4.0, gt=0, le=100, description="By which the tokens of a text are estimated, here and in every limit."
    )


class RouteMatch(BaseModel):
    """Which requests a route is for: those that fit everything it says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Patterns = Field((), description="Models, by name, or with wildcards (`llama-*`).")
    request_type: Annotated[tuple[RequestType, ...], BeforeValidator(_one_or_more)] = Field(
        (), description="`chat`, `multi_turn`, `batch`, `offline`, `embedding`."
    )
    stream: bool | None = Field(None, description="Whether the answer is to be streamed.")
    min_prompt_tokens: int | None = Field(None, ge=0, description="Least tokens of the prompt (estimated).")
    max_prompt_tokens: int | None = Field(None, ge=0, description="Most tokens of the prompt (estimated).")
    key: Patterns = Field((), description="API keys, by name, or with wildcards.")
    tenant: Patterns = Field((), description="Tenants, by name, or with wildcards.")
    needs: Annotated[tuple[Need, ...], BeforeValidator(_one_or_more)] = Field(
        (),
        description="What the request needs, all of it: `tools`, `forced_tools`, `json_schema`, `logprobs`, `n`, "
        "`image`, `audio`, `video`, `file`.",
    )


class Canary(BaseModel):
    """A pool that gets a share of what a route is for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pool: PoolName = Field(description="The pool.")
    percent: Percent = Field(description="Its share of the requests.")


class RouteConfig(BaseModel):
    """One rule. It says where requests go, or only adds a canary or a shadow to what other rules say."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=100, pattern=r"^[!-~]+$", description="What answers and logs call it.")
    match: RouteMatch = Field(RouteMatch(), description="Which requests it is for; without it, all.")
    pools: tuple[PoolName, ...] | dict[PoolName, Weight] = Field(
        (), description="Pools in order of preference; or with weights (`{a: 90, b: 10}`), by which one is drawn."
    )
    engines: tuple[str, ...] = Field((), description="Or the model's pools, in order of these engines.")
    only: bool = Field(
        False, description="Whether the model's other pools stay out of it, even if none of these is up."
    )
    sticky: bool = Field(
        False, description="Whether a conversation keeps to what was drawn for it: by weight, canary or shadow."
    )
    canary: Canary | None = Field(None, description="A pool that gets a share of these requests.")
    shadow: Canary | None = Field(
        None, description="A pool that gets copies of a share of these requests; its answers are thrown away."
    )

    @field_validator("engines")
    @classmethod
    def _known_engines(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for engine in value:
            if engine not in registry.ENGINES:
                raise ValueError(f"no engine '{engine}'; there are: {', '.join(sorted(registry.ENGINES))}")
        return value

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.pools and self.engines:
            raise ValueError("a route has 'pools' or 'engines', not both")
        if not (self.pools or self.engines or self.canary or self.shadow):
            raise ValueError("a route has 'pools', 'engines', 'canary' or 'shadow'")
        if self.only and not (self.pools or self.engines):
            raise ValueError("'only' goes with 'pools' or 'engines'")
        return self

    @property
    def weights(self) -> Mapping[str, float]:
        """Of its pools, where it has weights."""
        return self.pools if isinstance(self.pools, dict) else {}

    @property
    def named_pools(self) -> list[str]:
        """Every pool that it names."""
        return [*self.pools, *(each.pool for each in (self.canary, self.shadow) if each is not None)]


class ModelConfig(BaseModel):
    """A model that clients may name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pools: list[PoolName] = Field(
        min_length=1,
        description="Pools that serve it, by application name. Routes say which of them answers; where they see no "
        "difference, the first that is up.",
    )


class RoutingConfig(BaseModel):
    """All that requests are routed by."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    models: dict[str, ModelConfig] = Field({}, description="The models, by the name that clients send.")
    aliases: dict[str, str | dict[str, Weight]] = Field(
        {},
        description="Other names that clients may send, also with wildcards (`gpt-4*`): the model of each, or several "
        "with weights (`{a: 90, b: 10}`), of which each conversation gets one.",
    )
    routes: tuple[RouteConfig, ...] = Field(
        (), description="Rules for where requests go, before the default ones; of those that match, the first counts."
    )
    request_types: RequestTypes = Field(RequestTypes(), description="How a request's type is told.")

    @field_validator("routes")
    @classmethod
    def _names_are_unique(cls, value: tuple[RouteConfig, ...]) -> tuple[RouteConfig, ...]:
        names = [route.name for route in value]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise ValueError(f"two routes are named '{name}'; give each a name of its own")
        return value


# What engines are chosen for in practice; each is followed by the others, in the order of the last.
EVERYDAY = ("vllm", "sglang", "tensorrt_llm", "triton", "tgi", "openai", "simulated", "transformers")
DEFAULT_ROUTES = (
    RouteConfig(
        name="interactive",
        match=RouteMatch(request_type=("chat",), stream=True),
        engines=("tensorrt_llm", "triton"),
    ),
    RouteConfig(name="shared-prefix", match=RouteMatch(request_type=("multi_turn",)), engines=("sglang",)),
    RouteConfig(name="throughput", match=RouteMatch(request_type=("batch", "offline")), engines=("vllm",)),
    RouteConfig(name="everything-else", engines=EVERYDAY),
)

"""From a request to the pools that may answer it: pure functions."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from app.config import ModelConfig
from deployments.errors import ApiError, from_validation_error

LISTED_MODELS = 20  # names that a 404 lists


class _Routed(BaseModel):
    """What routing needs of a request; the rest is for the engine to judge."""

    model_config = ConfigDict(strict=True)

    model: str
    stream: bool | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request asks to be routed by."""

    model: str
    stream: bool


def read_request(body: bytes) -> Wanted:
    """Parse a request body, once, for what routing needs.

    Raises:
        ApiError: 400; the body isn't a JSON object, or these fields are missing or of a wrong type.
    """
    try:
        routed = _Routed.model_validate_json(body)
    except ValidationError as error:
        raise from_validation_error(error, ()) from None
    return Wanted(routed.model, bool(routed.stream))


def pools_of(
    model: str, models: Mapping[str, ModelConfig], adapters: Mapping[str, Sequence[str]] | None = None
) -> Sequence[str]:
    """The pools that serve `model`, or the adapter of that name, in order of preference.

    Raises:
        ApiError: 404, with the names that there are.
    """
    if found := models.get(model):
        return found.pools
    if having := (adapters or {}).get(model):
        return having
    names = sorted({*models, *(adapters or {})})
    listed = ", ".join(f"'{name}'" for name in names[:LISTED_MODELS])
    more = f" and {len(names) - LISTED_MODELS} more" if len(names) > LISTED_MODELS else ""
    there_are = f"There are: {listed}{more}." if names else "This server has no models yet."
    message = f"The model '{shorten(model)}' does not exist. {there_are}"
    raise ApiError(404, message, param="model", code="model_not_found")


def exposed_adapters(
    adapters: Mapping[str, Collection[str]], models: Mapping[str, ModelConfig]
) -> dict[str, Sequence[str]]:
    """The adapters that clients may name, each with those of its pools that a model has, in the models' order.

    A model's name comes before an adapter's.
    """
    order = list(dict.fromkeys(pool for entry in models.values() for pool in entry.pools))
    found = {name: [pool for pool in order if pool in pools] for name, pools in adapters.items() if name not in models}
    return {name: pools for name, pools in found.items() if pools}


def parent_of(pools: Sequence[str], models: Mapping[str, ModelConfig]) -> str:
    """The model that an adapter on `pools` belongs to: the first that has one of them."""
    return next(name for name, entry in models.items() if set(pools) & set(entry.pools))


def shorten(text: str, limit: int = 100) -> str:
    """A client's word, short enough to be put into an error."""
    return text if len(text) <= limit else text[:limit] + "…"

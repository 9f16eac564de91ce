"""The names that clients may send, and whose they are: models, aliases, and adapters."""

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

from app.routing.decide import pick
from app.routing.settings import ModelConfig
from deployments.errors import ApiError

LISTED_MODELS = 20  # names that a 404 lists


Aliases = Mapping[str, str | Mapping[str, float]]


def resolve(model: str, aliases: Aliases, models: Collection[str], point: float) -> str:
    """The model that a client's name means; the name itself, where it is no alias. A model's own name comes first,
    then an alias without wildcards. `point`, from 0 to below 1, decides where there are weights."""
    if not aliases or model in models:
        return model
    found = aliases.get(model)
    if found is None:
        found = next((target for pattern, target in aliases.items() if fnmatchcase(model, pattern)), model)
    return found if isinstance(found, str) else pick(found, point)


def is_pattern(alias: str) -> bool:
    """Whether it stands for many names."""
    return any(character in alias for character in "*?[")


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

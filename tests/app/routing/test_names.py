"""The names that clients may send."""

import pytest

from app.routing.names import (
    LISTED_MODELS,
    Aliases,
    exposed_adapters,
    is_pattern,
    parent_of,
    pools_of,
    resolve,
    shorten,
)
from app.routing.settings import ModelConfig
from deployments.errors import ApiError


def models(*names: str) -> dict[str, ModelConfig]:
    return {name: ModelConfig(pools=[f"pool-of-{name}"]) for name in names}


def test_the_pools_of_a_model_keep_their_order() -> None:
    there = {"m": ModelConfig(pools=["b", "a", "c"]), **models("other")}
    assert pools_of("m", there) == ["b", "a", "c"]


def test_the_pools_of_an_adapter() -> None:
    there = {"m": ModelConfig(pools=["b", "a"]), "n": ModelConfig(pools=["c", "a"])}
    adapters = exposed_adapters({"x": ["c", "a", "gone"], "y": ["b"], "gone": ["gone"], "m": ["c"]}, there)
    assert adapters == {"x": ["a", "c"], "y": ["b"]}
    assert pools_of("x", there, adapters) == ["a", "c"]
    assert pools_of("m", there, {"m": ["c"]}) == ["b", "a"]
    assert [parent_of(pools, there) for pools in (["a", "c"], ["c"], ["b"])] == ["m", "n", "m"]
    with pytest.raises(ApiError, match="There are: 'm', 'n', 'x', 'y'.$"):
        pools_of("z", there, adapters)


def unknown(model: str, *names: str) -> str:
    with pytest.raises(ApiError) as raised:
        pools_of(model, models(*names))
    error = raised.value
    assert (error.status, error.type) == (404, "invalid_request_error")
    assert (error.param, error.code) == ("model", "model_not_found")
    return error.message


def test_a_404_lists_the_names() -> None:
    assert unknown("c", "b", "a") == "The model 'c' does not exist. There are: 'a', 'b'."
    assert unknown("") == "The model '' does not exist. This server has no models yet."


@pytest.mark.parametrize(("count", "ending"), [(LISTED_MODELS, "'m19'."), (LISTED_MODELS + 1, "'m19' and 1 more.")])
def test_a_404_lists_so_many_names(count: int, ending: str) -> None:
    message = unknown("c", *(f"m{number:02}" for number in range(count)))
    assert message.endswith(ending)
    assert message.count("'m") == LISTED_MODELS


def test_a_long_name_is_shortened() -> None:
    assert unknown("x" * 101, "a") == f"The model '{'x' * 100}…' does not exist. There are: 'a'."
    assert shorten("x" * 100) == "x" * 100


ALIASES: Aliases = {"gpt-4*": "wild", "gpt-4o": "exact", "split": {"a": 3, "b": 1}, "m": "never"}


@pytest.mark.parametrize(
    ("name", "model"),
    [("gpt-4o", "exact"), ("gpt-4-turbo", "wild"), ("gpt-5", "gpt-5"), ("m", "m"), ("", "")],
)
def test_an_alias_means_a_model(name: str, model: str) -> None:
    assert resolve(name, ALIASES, ["m"], 0.5) == model


@pytest.mark.parametrize(("point", "model"), [(0.0, "a"), (0.74, "a"), (0.75, "b"), (0.99, "b")])
def test_an_alias_with_weights(point: float, model: str) -> None:
    assert resolve("split", ALIASES, [], point) == model


def test_which_aliases_stand_for_many_names() -> None:
    assert [is_pattern(alias) for alias in ("gpt-4*", "gpt-?", "gpt-[45]", "gpt-4o")] == [True, True, True, False]

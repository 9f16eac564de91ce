"""From a request's bytes to the pools that may answer it."""

import pytest

from app.config import ModelConfig
from app.routing import LISTED_MODELS, Wanted, exposed_adapters, parent_of, pools_of, read_request, shorten
from deployments.errors import ApiError


def refusal(body: bytes) -> ApiError:
    with pytest.raises(ApiError) as raised:
        read_request(body)
    assert (raised.value.status, raised.value.type) == (400, "invalid_request_error")
    return raised.value


def models(*names: str) -> dict[str, ModelConfig]:
    return {name: ModelConfig(pools=[f"pool-of-{name}"]) for name in names}


@pytest.mark.parametrize(
    ("fields", "stream"),
    [(b"", False), (b', "stream": true', True), (b', "stream": false', False), (b', "stream": null', False)],
)
def test_model_and_stream_are_read(fields: bytes, stream: bool) -> None:
    assert read_request(b'{"model": "org/name"%s}' % fields) == Wanted("org/name", stream)


def test_what_is_not_for_routing_is_not_judged() -> None:
    assert read_request(b'{"model": "m", "messages": 5, "tempreature": [null]}') == Wanted("m", False)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "EOF while parsing a value at line 1 column 0."),
        (b'{"model": "m"', "EOF while parsing an object at line 1 column 13."),
        (b"{'model': 'm'}", "key must be a string at line 1 column 2."),
        (b'{"model": "m"} {}', "trailing characters at line 1 column 16."),
        (b'{"model": "\xff"}', "invalid unicode code point at line 1 column 12."),
        (b'{"model": "\\ud800"}', "unexpected end of hex escape at line 1 column 18."),
        (b"[" * 10_000, "recursion limit exceeded at line 1 column 202."),
    ],
)
def test_what_is_not_json(body: bytes, message: str) -> None:
    error = refusal(body)
    assert error.message == f"The request body is not JSON: {message}"
    assert (error.param, error.code) == (None, None)


@pytest.mark.parametrize("body", [b"[]", b"null", b'"model"', b"5", b'[{"model": "m"}]'])
def test_json_that_is_no_object(body: bytes) -> None:
    error = refusal(body)
    assert error.message == "Invalid value: Input should be an object."
    assert (error.param, error.code) == (None, "invalid_value")


def test_the_model_is_required() -> None:
    error = refusal(b'{"messages": []}')
    assert error.message == "Missing required parameter: 'model'."
    assert (error.param, error.code) == ("model", "missing_parameter")


@pytest.mark.parametrize("value", [b"5", b"null", b"true", b'["m"]', b"{}"])
def test_the_model_is_a_string(value: bytes) -> None:
    error = refusal(b'{"model": %s}' % value)
    assert error.message == "Invalid value for 'model': Input should be a valid string."
    assert (error.param, error.code) == ("model", "invalid_value")


@pytest.mark.parametrize("value", [b'"true"', b"1", b"0", b"[]", b'""'])
def test_stream_is_a_boolean(value: bytes) -> None:
    error = refusal(b'{"model": "m", "stream": %s}' % value)
    assert error.message == "Invalid value for 'stream': Input should be a valid boolean."
    assert (error.param, error.code) == ("stream", "invalid_value")


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

import json
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from deployments.errors import (
    ApiError,
    client_location,
    dotted,
    envelope,
    error_event,
    from_validation_error,
    internal_error,
    sentence,
    unavailable,
    unknown_keys,
)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Item(Strict):
    kind: Literal["item"]
    size: int = 0

    @field_validator("size")
    @classmethod
    def _even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("expected an even number.")
        return value


class Other(Strict):
    kind: Literal["other"]
    deep: list[Item] = []


class Document(Strict):
    name: str
    max_size: int | None = None
    stop: str | list[str] = ""
    choice: Item | Other | None = None
    items: list[Item] = []


def refusal(body: str) -> ApiError:
    with pytest.raises(ValidationError) as caught:
        Document.model_validate_json(body)
    return from_validation_error(caught.value, Document.model_fields)


def summary(error: ApiError) -> tuple[int, str, str | None, str | None, str]:
    return error.status, error.type, error.param, error.code, error.message


def test_an_envelope_has_openai_s_four_fields_and_no_more() -> None:
    assert json.loads(envelope("Größe", "server_error")) == {
        "error": {"message": "Größe", "type": "server_error", "param": None, "code": None}
    }
    assert json.loads(envelope("m", "t", "p", "c"))["error"] == {"message": "m", "type": "t", "param": "p", "code": "c"}


def test_an_error_event_is_one_server_sent_event() -> None:
    event = error_event("two\nlines", "engine_error")
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    error = json.loads(event.removeprefix(b"data: "))["error"]
    assert error == {"message": "two\nlines", "type": "server_error", "param": None, "code": "engine_error"}


def test_an_api_error_is_a_client_s_fault_until_told_otherwise() -> None:
    error = ApiError(400, "No.")
    assert summary(error) == (400, "invalid_request_error", None, None, "No.")
    assert error.headers == {}
    assert str(error) == "No."
    assert error.body() == envelope("No.", "invalid_request_error")


def test_an_api_error_keeps_all_that_it_is_given() -> None:
    headers = {"retry-after": "1"}
    error = ApiError(429, "Later.", type="rate_limit_error", param="n", code="busy", headers=headers)
    headers.clear()
    assert summary(error) == (429, "rate_limit_error", "n", "busy", "Later.")
    assert error.headers == {"retry-after": "1"}
    assert error.body() == envelope("Later.", "rate_limit_error", "n", "busy")


def test_unavailable_says_when_to_come_back() -> None:
    error = unavailable("Gone.", "engine_dead", 30)
    assert summary(error) == (503, "server_error", None, "engine_dead", "Gone.")
    assert error.headers == {"retry-after": "30"}


def test_an_internal_error_names_the_header_to_quote() -> None:
    error = internal_error()
    assert (error.status, error.type, error.code) == (500, "server_error", "internal_error")
    assert "x-request-id" in error.message


@pytest.mark.parametrize(
    ("keys", "valid", "expected"),
    [
        (["temprature"], ["top_p", "temperature"], ["Unknown parameter 'temprature'; did you mean 'temperature'?"]),
        (["zzz"], ["top_p", "n"], ["Unknown parameter 'zzz'; valid: n, top_p."]),
        (["zzz"], [], ["Unknown parameter 'zzz'."]),
        (["n"], ["n"], []),
        ([], ["n"], []),
        (["n", "x", "y"], ["n"], ["Unknown parameter 'x'; valid: n.", "Unknown parameter 'y'; valid: n."]),
    ],
    ids=["near", "far", "none valid", "valid", "no keys", "several"],
)
def test_unknown_keys(keys: list[str], valid: list[str], expected: list[str]) -> None:
    assert unknown_keys(keys, valid) == expected


def test_unknown_keys_takes_another_noun_and_any_iterable() -> None:
    assert unknown_keys(iter("x"), iter(["nn"]), "engine_args key") == ["Unknown engine_args key 'x'; valid: nn."]


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ((), ""),
        (("model",), "model"),
        (("messages", 0, "role"), "messages[0].role"),
        (("prompt", 2, 31), "prompt[2][31]"),
        ((0, "a"), "[0].a"),
    ],
)
def test_dotted(location: tuple[str | int, ...], path: str) -> None:
    assert dotted(location) == path


@pytest.mark.parametrize(
    ("location", "kept"),
    [
        (("stop", "str"), ["stop"]),
        (("stop", "list[str]", 1), ["stop", 1]),
        (("messages", 0, "ChatUserMessage", "content"), ["messages", 0, "content"]),
        (("messages", 0, "function-after[check(), Item]", "role"), ["messages", 0, "role"]),
        (("x", "nullable", "int"), ["x"]),
    ],
)
def test_a_client_sees_no_union_branches(location: tuple[str | int, ...], kept: list[str | int]) -> None:
    assert client_location(location) == kept


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("Value error, expected more.", "expected more."),
        ("Assertion failed, expected less", "expected less."),
        ("Input should be a valid integer", "Input should be a valid integer."),
    ],
)
def test_sentence(message: str, text: str) -> None:
    assert sentence(message) == text


@pytest.mark.parametrize("body", ["", "{", '{"name": "a"} b', '{"name": "\\ud800"}', '{"name": ' + "[" * 100_000])
def test_what_is_no_json_has_no_param(body: str) -> None:
    error = refusal(body)
    assert (error.status, error.type, error.param) == (400, "invalid_request_error", None)
    assert error.message.startswith("The request body is not JSON: ")
    assert "Invalid JSON" not in error.message
    assert error.message.endswith(".")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ("{}", "name"),
        ('{"name": "a", "items": [{"kind": "item"}, {}]}', "items[1].kind"),
        ('{"name": "a", "choice": {"kind": "other", "deep": [{"size": 2}]}}', "choice.deep[0].kind"),
    ],
)
def test_a_missing_field(body: str, param: str) -> None:
    message = f"Missing required parameter: '{param}'."
    assert summary(refusal(body)) == (400, "invalid_request_error", param, "missing_parameter", message)


def test_an_unknown_field_at_the_top_gets_the_nearest_name() -> None:
    message = "Unknown parameter 'max_sice'; did you mean 'max_size'?"
    expected = (400, "invalid_request_error", "max_sice", "unknown_parameter", message)
    assert summary(refusal('{"name": "a", "max_sice": 1}')) == expected


def test_an_unknown_field_below_the_top_gets_no_name_of_the_top() -> None:
    error = refusal('{"name": "a", "items": [{"kind": "item", "max_size": 1}]}')
    message = "Unknown parameter 'max_size'."
    assert summary(error) == (400, "invalid_request_error", "items[0].max_size", "unknown_parameter", message)


@pytest.mark.parametrize("key", ["maxTokens", "max-size", "Größe", "a b", "str", "list[str]", "1", ""])
def test_an_unknown_field_keeps_its_name_however_it_is_spelt(key: str) -> None:
    top = refusal(json.dumps({"name": "a", key: 1}))
    assert (top.param, top.code) == (key or None, "unknown_parameter")
    assert top.message.startswith(f"Unknown parameter '{key}'; ")
    below = refusal(json.dumps({"name": "a", "items": [{"kind": "item", key: 1}]}))
    assert (below.param, below.message) == (f"items[0].{key}", f"Unknown parameter '{key}'.")


@pytest.mark.parametrize(
    ("body", "param", "reason"),
    [
        ('{"name": 1}', "name", "Input should be a valid string."),
        ('{"name": "a", "max_size": "1"}', "max_size", "Input should be a valid integer."),
        ('{"name": "a", "items": [{"kind": "item", "size": 1}]}', "items[0].size", "expected an even number."),
        ('{"name": "a", "stop": 1}', "stop", "Input should be a valid string."),
        ('{"name": "a", "stop": ["a", 1]}', "stop[1]", "Input should be a valid string."),
    ],
)
def test_an_invalid_value(body: str, param: str, reason: str) -> None:
    message = f"Invalid value for '{param}': {reason}"
    assert summary(refusal(body)) == (400, "invalid_request_error", param, "invalid_value", message)


def test_a_document_of_the_wrong_kind_has_no_param() -> None:
    expected = (400, "invalid_request_error", None, "invalid_value", "Invalid value: Input should be an object.")
    assert summary(refusal("[]")) == expected


def test_of_a_union_s_errors_the_deepest_is_told() -> None:
    body = '{"name": "a", "choice": {"kind": "other", "deep": [{"kind": "item", "size": "2"}]}}'
    assert refusal(body).param == "choice.deep[0].size"


def test_no_value_of_a_request_is_repeated() -> None:
    error = refusal('{"name": "a", "items": [{"kind": "item", "size": "my secret"}]}')
    assert "my secret" not in error.message

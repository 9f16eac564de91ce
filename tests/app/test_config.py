"""The ingress's settings: out of a config file, with the environment on top."""

from typing import Any

import pytest
from pydantic import ValidationError

from app.config import IngressArgs, IngressConfig, environment_variables, load_ingress_config
from app.environment import known_variables, unknown_variables

MODELS = {"m": {"pools": ["a", "b"]}}


def refused(values: dict[str, Any], environ: dict[str, str] | None = None) -> list[tuple[tuple[str | int, ...], str]]:
    with pytest.raises(ValidationError) as raised:
        load_ingress_config(values, environ or {})
    return [(details["loc"], details["type"]) for details in raised.value.errors()]


def test_defaults() -> None:
    config = load_ingress_config({}, {})
    assert config.model_dump() == {
        "models": {},
        "aliases": {},
        "routes": (),
        "request_types": {
            "multi_turn_messages": 5,
            "multi_turn_prompt_tokens": 4096,
            "shared_prefix_tokens": 512,
            "batch_max_tokens": 1024,
            "characters_per_token": 4.0,
        },
        "admission": {
            "pools": {},
            "models": {},
            "headroom": {"batch": 0.2, "offline": 0.25},
            "default_max_tokens": 512,
            "timeouts": {
                "queue_s": 60.0,
                "first_token_s": 600.0,
                "between_tokens_s": 300.0,
                "unread_s": 60.0,
                "total_s": None,
            },
        },
        "resilience": {"max_attempts": 3, "breaker": {"window": 20, "min_failures": 5, "open_s": 10.0}},
        "access": {"keys_file": None, "keys_env": None, "anonymous": False},
        "max_body_bytes": 33_554_432,
        "body_timeout_s": 60.0,
        "retry_after_s": 5,
        "status_interval_s": 1.0,
        "token_plane": True,
    }


def test_what_a_file_says() -> None:
    config = load_ingress_config({"models": MODELS, "retry_after_s": 9}, {})
    assert config.models["m"].pools == ["a", "b"]
    assert (config.retry_after_s, config.max_body_bytes) == (9, 33_554_432)


def test_the_environment_wins() -> None:
    environ = {
        "ENGINEHOUSE_INGRESS_MAX_BODY_BYTES": "2048",
        "ENGINEHOUSE_INGRESS_STATUS_INTERVAL_S": "0.25",
        "ENGINEHOUSE_INGRESS_MODELS": "{}",  # is no override: it says nothing
    }
    config = load_ingress_config({"models": MODELS, "max_body_bytes": 1024, "retry_after_s": 9}, environ)
    assert (config.max_body_bytes, config.status_interval_s, config.retry_after_s) == (2048, 0.25, 9)
    assert list(config.models) == ["m"]


def test_the_process_environment_is_read_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEHOUSE_INGRESS_RETRY_AFTER_S", "7")
    assert load_ingress_config({}).retry_after_s == 7


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("max_body_bytes", 1023, "greater_than_equal"),
        ("max_body_bytes", "many", "int_parsing"),
        ("body_timeout_s", 0, "greater_than"),
        ("body_timeout_s", float("inf"), "finite_number"),
        ("retry_after_s", 0, "greater_than_equal"),
        ("retry_after_s", 1.5, "int_from_float"),
        ("status_interval_s", 0.09, "greater_than_equal"),
        ("models", ["m"], "dict_type"),
    ],
)
def test_a_bad_value(key: str, value: object, kind: str) -> None:
    assert refused({key: value}) == [((key,), kind)]


def test_a_bad_value_in_the_environment() -> None:
    assert refused({}, {"ENGINEHOUSE_INGRESS_RETRY_AFTER_S": "soon"}) == [(("retry_after_s",), "int_parsing")]


def test_a_model_has_pools() -> None:
    assert refused({"models": {"m": {"pools": []}}}) == [(("models", "m", "pools"), "too_short")]
    assert refused({"models": {"m": {}}}) == [(("models", "m", "pools"), "missing")]


def test_unknown_keys_are_refused() -> None:
    assert refused({"retry_after": 5}) == [(("retry_after",), "extra_forbidden")]
    assert refused({"models": {"m": {"pools": ["a"], "weight": 2}}}) == [(("models", "m", "weight"), "extra_forbidden")]
    with pytest.raises(ValidationError):
        IngressArgs.model_validate({"models": MODELS})


def test_a_configuration_does_not_change() -> None:
    with pytest.raises(ValidationError):
        load_ingress_config({}, {}).retry_after_s = 9  # type: ignore[misc]


def test_every_plain_key_has_a_variable() -> None:
    assert environment_variables() == {
        "max_body_bytes": "ENGINEHOUSE_INGRESS_MAX_BODY_BYTES",
        "body_timeout_s": "ENGINEHOUSE_INGRESS_BODY_TIMEOUT_S",
        "retry_after_s": "ENGINEHOUSE_INGRESS_RETRY_AFTER_S",
        "status_interval_s": "ENGINEHOUSE_INGRESS_STATUS_INTERVAL_S",
        "token_plane": "ENGINEHOUSE_INGRESS_TOKEN_PLANE",
    }
    structured = {"models", "aliases", "routes", "request_types", "admission", "resilience", "access"}
    assert set(environment_variables()) == set(IngressConfig.model_fields) - structured


def test_variables_that_nothing_reads() -> None:
    known = dict.fromkeys(known_variables(), "1")
    assert unknown_variables(known | {"PATH": "/bin", "HOUSE": "1"}) == []
    assert unknown_variables({"ENGINEHOUSE_PROT": "1", "ENGINEHOUSE_INGRESS_RETRY_AFTER": "1"}) == [
        "Unknown environment variable 'ENGINEHOUSE_INGRESS_RETRY_AFTER'; "
        "did you mean 'ENGINEHOUSE_INGRESS_RETRY_AFTER_S'?",
        "Unknown environment variable 'ENGINEHOUSE_PROT'; did you mean 'ENGINEHOUSE_PORT'?",
    ]

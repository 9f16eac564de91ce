"""What may be said of keys, and where they may be."""

from typing import Any

import pytest
from pydantic import ValidationError

from app.access.settings import AccessConfig, KeyRecord

HASH = "ab" * 32


def refused(schema: type[AccessConfig] | type[KeyRecord], **values: Any) -> str:
    with pytest.raises(ValidationError) as raised:
        schema.model_validate(values)
    [details] = raised.value.errors()
    return details["msg"].removeprefix("Value error, ")


def test_by_default_there_are_no_keys_and_nobody_is_anonymous() -> None:
    config = AccessConfig()
    assert (config.keys_file, config.keys_env, config.anonymous, config.has_keys) == (None, None, False, False)


@pytest.mark.parametrize("values", [{"keys_file": "/keys.yaml"}, {"keys_env": "MY_KEYS"}])
def test_a_place_of_keys(values: dict[str, Any]) -> None:
    assert AccessConfig.model_validate(values).has_keys


def test_a_file_is_named_by_its_whole_path() -> None:
    assert refused(AccessConfig, keys_file="keys.yaml").startswith("write the whole path, from '/' on")


def test_a_variable_of_ours_is_a_setting() -> None:
    """`enginehouse check` would refuse it as unknown."""
    assert refused(AccessConfig, keys_env="ENGINEHOUSE_KEYS").startswith("variables that begin with 'ENGINEHOUSE_'")
    refused(AccessConfig, keys_env="MY-KEYS")


@pytest.mark.parametrize("values", [{"keys_file": "/keys.yaml"}, {"keys_env": "MY_KEYS"}])
def test_keys_or_everybody(values: dict[str, Any]) -> None:
    message = refused(AccessConfig, anonymous=True, **values)
    assert message == "'anonymous: true' lets everybody in without a key; take it or the keys away"


@pytest.mark.parametrize("name", ["", "-x", "a b", "a\n", "ä", "a/b", "x" * 65, "eh-abc"])
def test_what_is_no_name(name: str) -> None:
    refused(KeyRecord, name=name, sha256=HASH)
    refused(KeyRecord, name="good", tenant=name, sha256=HASH)


@pytest.mark.parametrize("digest", ["", "ab" * 31, "ab" * 33, "AB" * 32, "xy" * 32, HASH + "\n"])
def test_what_is_no_hash(digest: str) -> None:
    refused(KeyRecord, name="good", sha256=digest)


@pytest.mark.parametrize("limit", ["requests_per_minute", "tokens_per_minute", "max_concurrent"])
def test_a_limit_is_at_least_one(limit: str) -> None:
    refused(KeyRecord, name="good", sha256=HASH, **{limit: 0})
    assert getattr(KeyRecord.model_validate({"name": "good", "sha256": HASH, limit: 1}), limit) == 1


def test_no_text_of_a_record_or_an_error_has_the_hash() -> None:
    record = KeyRecord(name="good", sha256=HASH)
    assert HASH not in f"{record!r} {record}"
    with pytest.raises(ValidationError) as raised:
        KeyRecord.model_validate({"name": "good", "sha256": "eh-secret"})
    assert "eh-secret" not in str(raised.value)

"""A request's key is found by a hash of what it shows; what it may ask for; and no text has anything of it."""

from collections.abc import Callable
from typing import Any

import pytest

from app.access import keys
from app.access.keys import Key, KeyRing, Limits, may_ask, may_see, must_be_admin, read_key
from app.access.secret import digest, new_secret, without_secrets
from app.access.settings import KeyRecord
from deployments.errors import ApiError

SECRET, OTHER = b"eh-one", b"eh-two"
ONE = Key("one", "team", digest=digest(SECRET))
TWO = Key("two", "two", digest=digest(OTHER))
RING = KeyRing([ONE, TWO])
Headers = list[tuple[bytes, bytes]]


def refused(do: Callable[[], Any]) -> ApiError:
    with pytest.raises(ApiError) as raised:
        do()
    return raised.value


# Secrets


def test_a_secret_is_256_random_bits_with_a_prefix() -> None:
    made = {new_secret() for _ in range(100)}
    assert len(made) == 100
    assert {(secret[:3], len(secret)) for secret in made} == {("eh-", 3 + 43)}


def test_what_is_kept_is_the_sha_256() -> None:
    assert digest(b"abc").hex() == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_secrets_are_taken_out_of_texts() -> None:
    secret = new_secret()
    assert without_secrets(f"Unknown key '{secret}'; eh-?") == "Unknown key 'eh-...'; eh-?"


# Finding


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Bearer eh-one")],
        [(b"authorization", b"bearer  eh-one ")],
        [(b"x-api-key", b"eh-one")],
        [(b"host", b"x"), (b"x-api-key", b" eh-one ")],
        [(b"x-api-key", b"eh-two"), (b"authorization", b"Bearer eh-one")],
        [(b"authorization", b"Basic eh-two"), (b"x-api-key", b"eh-one")],
    ],
)
def test_a_key_is_found(headers: Headers) -> None:
    assert RING.find(headers) is ONE


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"")],
        [(b"authorization", b"Bearer ")],
        [(b"authorization", b"Bearer")],
        [(b"authorization", b"eh-one")],
        [(b"authorization", b"Basic eh-one")],
        [(b"x-api-key", b" ")],
        [(b"cookie", b"eh-one")],
        [(b"authorization", b"Bearer "), (b"x-api-key", b"eh-one")],
    ],
)
def test_no_key_is_shown(headers: Headers) -> None:
    error = refused(lambda: RING.find(headers))
    assert (error.status, error.type, error.code) == (401, "invalid_request_error", "missing_api_key")
    assert error.headers == {"www-authenticate": 'Bearer realm="enginehouse"'}


@pytest.mark.parametrize("shown", [b"eh-three", b"eh-on", b"eh-one1", b"EH-ONE", b"\xff\x00", ONE.digest, b"one"])
def test_a_key_that_is_not_there(shown: bytes) -> None:
    error = refused(lambda: RING.find([(b"authorization", b"Bearer " + shown)]))
    assert (error.status, error.type, error.code) == (401, "invalid_request_error", "invalid_api_key")
    assert error.headers == {"www-authenticate": 'Bearer realm="enginehouse", error="invalid_token"'}
    assert error.message == "This API key isn't valid here."


@pytest.mark.parametrize(
    "shown",
    [
        b"eh-one\0",
        b"eh-one, Bearer eh-one",
        b"eh-one eh-two",
        b"eh-" + b"x" * 60_000,
        "eh-\N{LATIN SMALL LETTER E WITH ACUTE}".encode(),
        b"\xc0\x80",
        b"\x80" * 100,
        b'"eh-one"',
        b"eh-one%00",
    ],
)
def test_a_key_with_something_to_it_is_another(shown: bytes) -> None:
    for headers in ([(b"authorization", b"Bearer " + shown)], [(b"x-api-key", shown)]):
        assert refused(lambda headers=headers: RING.find(headers)).code == "invalid_api_key"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("shown", "code"),
    [
        ([b"Bearer eh-one", b"Bearer eh-three"], None),
        ([b"Bearer eh-three", b"Bearer eh-one"], "invalid_api_key"),
        ([b"Bearer ", b"Bearer eh-one"], "missing_api_key"),
        ([b"Basic eh-three", b"Bearer eh-one"], None),
    ],
)
def test_of_two_headers_the_first_of_our_scheme_counts(shown: list[bytes], code: str | None) -> None:
    headers = [(b"authorization", value) for value in shown]
    if code is None:
        assert RING.find(headers) is ONE
    else:
        assert refused(lambda: RING.find(headers)).code == code


def test_the_wrong_key_is_not_made_up_for_by_a_right_one() -> None:
    headers = [(b"authorization", b"Bearer eh-three"), (b"x-api-key", b"eh-one")]
    assert refused(lambda: RING.find(headers)).code == "invalid_api_key"


def test_one_hash_and_one_comparison_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed, compared = list[bytes](), list[tuple[bytes, bytes]]()

    def hash_of(secret: bytes) -> bytes:
        hashed.append(secret)
        return digest(secret)

    def compare(kept: bytes, found: bytes) -> bool:
        compared.append((kept, found))
        return kept == found

    monkeypatch.setattr(keys, "digest", hash_of)
    monkeypatch.setattr("app.access.keys.hmac.compare_digest", compare)
    RING.find([(b"x-api-key", SECRET), (b"authorization", b"Bearer " + OTHER)])
    assert (hashed, compared) == ([OTHER], [(TWO.digest, TWO.digest)])


def test_a_comparison_that_fails_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.access.keys.hmac.compare_digest", lambda *_: False)
    assert refused(lambda: RING.find([(b"x-api-key", SECRET)])).code == "invalid_api_key"


def test_no_text_has_anything_of_a_key() -> None:
    for text in (repr(ONE), repr(RING), str(ONE)):
        assert ONE.digest.hex() not in text and repr(ONE.digest) not in text


def test_the_names_of_a_ring() -> None:
    assert RING.names() == {"one", "two"}


# What a key may


def key(*models: str, admin: bool = False) -> Key:
    return Key("mine", "mine", models, admin)


def there_is(model: str) -> bool:
    return model in ("llama-8b", "org/qwen")


@pytest.mark.parametrize(
    ("record", "models", "tenant"),
    [
        ({}, ("*",), "mine"),
        ({"models": []}, (), "mine"),
        ({"models": ["a", "b-*"], "tenant": "team"}, ("a", "b-*"), "team"),
        ({"admin": True}, (), "mine"),
        ({"admin": True, "models": ["*"]}, ("*",), "mine"),
    ],
)
def test_a_key_as_it_is_written(record: dict[str, Any], models: tuple[str, ...], tenant: str) -> None:
    found = read_key(KeyRecord.model_validate({"name": "mine", "sha256": ONE.digest.hex(), **record}))
    assert found == Key("mine", tenant, models, bool(record.get("admin")), Limits(), ONE.digest)
    assert found.digest == ONE.digest


def test_the_limits_of_a_key() -> None:
    record = KeyRecord(name="a", sha256="00" * 32, requests_per_minute=1, tokens_per_minute=2, max_concurrent=3)
    assert read_key(record).limits == Limits(1, 2, 3)


@pytest.mark.parametrize(
    ("limits", "some"), [(Limits(), False), (Limits(1), True), (Limits(None, 1), True), (Limits(None, None, 1), True)]
)
def test_whether_there_are_limits(limits: Limits, some: bool) -> None:
    assert bool(limits) is some


@pytest.mark.parametrize(
    ("models", "model"),
    [(("llama-8b",), "llama-8b"), (("llama-*",), "llama-8b"), (("x", "org/*"), "org/qwen"), (("*wen",), "org/qwen")],
)
def test_a_model_that_a_key_may_ask_for(models: tuple[str, ...], model: str) -> None:
    may_ask(key(*models), model, there_is)
    assert key(*models).sees(model)


@pytest.mark.parametrize(
    ("models", "model"),
    [
        ((), "llama-8b"),
        (("llama-8",), "llama-8b"),
        (("LLAMA-*",), "llama-8b"),
        (("qwen",), "org/qwen"),
        (("llama-*",), "llama-70b"),  # which isn't there: the same words, so that it can't be told
    ],
)
def test_a_model_that_a_key_may_not_ask_for_is_not_there(models: tuple[str, ...], model: str) -> None:
    error = refused(lambda: may_ask(key(*models), model, there_is))
    assert (error.status, error.type, error.param, error.code) == (
        404,
        "invalid_request_error",
        "model",
        "model_not_found",
    )
    assert error.message == (
        f"The model '{model}' does not exist, or the key 'mine' may not use it. GET /v1/models lists those that it may."
    )


def test_a_key_for_everything_is_not_asked_twice() -> None:
    """Routing says, and with the names that there are, which model isn't there."""
    may_ask(key("*"), "nothing", lambda _: False)


def test_an_admin_key_sees_all_models_and_asks_none() -> None:
    admin = key(admin=True)
    assert admin.sees("llama-8b")
    may_see(admin, "llama-8b", there_is)
    refused(lambda: may_ask(admin, "llama-8b", there_is))


def test_another_key_sees_what_it_may_ask_for() -> None:
    assert not key("llama-*").sees("org/qwen")
    may_see(key("llama-*"), "llama-8b", there_is)
    assert refused(lambda: may_see(key("llama-*"), "org/qwen", there_is)).status == 404


def test_what_changes_the_server_takes_an_admin_key() -> None:
    must_be_admin(key(admin=True))
    error = refused(lambda: must_be_admin(key("*")))
    assert (error.status, error.code) == (403, "admin_key_required")
    assert error.message == "This takes an admin key; the key 'mine' is none."
    assert "this server has none" in refused(lambda: must_be_admin(Key("", ""))).message

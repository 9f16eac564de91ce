"""Whom an ingress replica lets in, by its configuration and where it listens."""

import asyncio
import logging
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from app.access import access as module
from app.access.access import Access
from app.access.secret import digest
from app.access.settings import AccessConfig
from app.access.visit import LimitedVisit, Visit
from app.admission.budget import Place
from app.routing.request import read_request
from deployments.errors import ApiError

Message = MutableMapping[str, Any]
Headers = list[tuple[bytes, bytes]]
NOBODY: Headers = []
ONE: Headers = [(b"authorization", b"Bearer eh-one")]
TWO: Headers = [(b"authorization", b"Bearer eh-two")]


def refused(do: Callable[[], Any]) -> ApiError:
    with pytest.raises(ApiError) as raised:
        do()
    return raised.value


def record(name: str, **said: Any) -> str:
    fields = {"name": name, "sha256": digest(f"eh-{name}".encode()).hex(), **said}
    return f"- {{{', '.join(f'{key}: {value}' for key, value in fields.items())}}}\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys.yaml"
    path.write_text(record("one", admin="true") + record("two", requests_per_minute=1))
    return path


@pytest.fixture
def access(path: Path) -> Access:
    access = Access("0.0.0.0", lambda: 0)
    access.configure(AccessConfig(keys_file=str(path)))
    return access


# Without keys


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_on_loopback_everybody_is_an_operator(host: str) -> None:
    visit = Access(host).visit(NOBODY)
    assert type(visit) is Visit
    assert (visit.key.name, visit.key.tenant, visit.key.admin, visit.key.unrestricted) == ("", "", True, True)


def test_everybodys_visit_is_made_once_and_reads_no_header() -> None:
    access = Access("127.0.0.1")
    unread: Any = None
    assert access.visit(unread) is access.visit(unread)


@pytest.mark.parametrize(
    ("host", "where"),
    [
        ("0.0.0.0", "listens on '0.0.0.0', which isn't loopback,"),
        (None, "can't tell whether it listens on loopback,"),
    ],
)
def test_where_others_reach_it_nobody_is_let_in(host: str | None, where: str) -> None:
    access = Access(host)
    access.configure(AccessConfig())
    error = refused(lambda: access.visit(ONE))
    assert (error.status, error.code) == (401, "no_api_keys")
    assert error.message == (
        f"This server {where} and has no API keys, so it lets nobody in. Its operator has to set 'access.keys_file' in "
        "the ingress's user_config ('enginehouse keys new' makes a key), or say 'access: {anonymous: true}' there."
    )
    assert error.headers == {"www-authenticate": 'Bearer realm="enginehouse"'}


def test_the_host_is_learned_later() -> None:
    access = Access(None)
    refused(lambda: access.visit(NOBODY))
    access.listen_on("127.0.0.1")
    access.visit(NOBODY)
    access.listen_on("10.0.0.5")
    refused(lambda: access.visit(NOBODY))


@pytest.mark.parametrize(("host", "admin"), [("0.0.0.0", False), (None, False), ("127.0.0.1", True)])
def test_anonymous_lets_everybody_in_but_no_stranger_change_the_server(host: str | None, admin: bool) -> None:
    access = Access(host)
    access.configure(AccessConfig(anonymous=True))
    key = access.visit(NOBODY).key
    assert (key.admin, key.unrestricted) == (admin, True)


# With keys


def test_a_key_is_needed(access: Access) -> None:
    assert refused(lambda: access.visit(NOBODY)).code == "missing_api_key"
    assert refused(lambda: access.visit([(b"x-api-key", b"eh-three")])).code == "invalid_api_key"
    assert (access.visit(ONE).key.name, access.visit(ONE).key.admin) == ("one", True)
    assert (access.find(TWO).name, access.find(TWO).admin) == ("two", False)


def test_a_key_is_needed_on_loopback_too(path: Path) -> None:
    access = Access("127.0.0.1")
    access.configure(AccessConfig(keys_file=str(path)))
    assert refused(lambda: access.visit(NOBODY)).code == "missing_api_key"


def test_only_a_key_with_limits_is_counted(access: Access) -> None:
    assert type(access.visit(ONE)) is Visit
    assert type(access.visit(TWO)) is LimitedVisit


def test_limits_are_of_a_key_over_its_visits_and_shared_by_replicas(access: Access) -> None:
    request = read_request("completions", b'{"model": "m"}')
    access.visit(TWO).enter(request, 1)
    assert refused(lambda: access.visit(TWO).enter(request, 1)).headers["x-ratelimit-limit-requests"] == "1"
    access.move(Place(1, 2))
    error = refused(lambda: access.visit(TWO).enter(request, 1))
    assert "this ingress replica's share is 1" in error.message


def test_without_keys_that_could_be_read_nobody_is_let_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    access = Access("127.0.0.1")
    access.configure(AccessConfig(keys_file=str(tmp_path / "gone.yaml")))
    error = refused(lambda: access.visit(ONE))
    assert (error.status, error.code, error.headers) == (503, "keys_unreadable", {"retry-after": "5"})
    assert [each.levelno for each in caplog.records] == [logging.ERROR]


def test_a_file_without_keys_lets_nobody_in(path: Path) -> None:
    path.write_text("[]")
    access = Access("127.0.0.1")
    access.configure(AccessConfig(keys_file=str(path)))
    assert refused(lambda: access.visit(ONE)).code == "invalid_api_key"


async def test_a_changed_file_is_read_at_a_look(access: Access, path: Path) -> None:
    await asyncio.to_thread(path.write_text, record("two"))
    assert access.find(ONE).name == "one"
    await access.look()
    assert refused(lambda: access.find(ONE)).code == "invalid_api_key"
    assert type(access.visit(TWO)) is Visit


async def test_it_is_looked_at_again_and_again(access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    twice, looks, loop = asyncio.Event(), list[int](), asyncio.get_running_loop()

    def look() -> None:
        looks.append(1)
        if len(looks) == 2:
            loop.call_soon_threadsafe(twice.set)

    assert access._sources is not None
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    monkeypatch.setattr(access._sources, "look", look)
    access.watch()
    async with asyncio.timeout(60):
        await twice.wait()
    assert access._watching is not None
    access._watching.cancel()


async def test_a_look_that_fails_is_logged(
    access: Access, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ValueError("why")

    assert access._sources is not None
    monkeypatch.setattr(access._sources, "look", fail)
    await access.look()
    assert caplog.messages == ["the keys file can't be looked at: ValueError('why')"]
    assert access.find(ONE).name == "one"


def test_the_same_configuration_again_reads_a_changed_file(access: Access, path: Path) -> None:
    path.write_text(record("three"))
    access.configure(AccessConfig(keys_file=str(path)))
    assert access.find([(b"x-api-key", b"eh-three")]).name == "three"


def test_the_same_configuration_again_keeps_the_last_good_keys(access: Access, path: Path) -> None:
    path.write_text("- nonsense")
    access.configure(AccessConfig(keys_file=str(path)))
    assert access.find(ONE).name == "one"


def test_keys_of_another_file_do_not_outlive_it(access: Access, tmp_path: Path) -> None:
    access.configure(AccessConfig(keys_file=str(tmp_path / "gone.yaml")))
    assert refused(lambda: access.find(ONE)).status == 503


def test_keys_that_are_taken_away(access: Access) -> None:
    access.configure(AccessConfig())
    assert refused(lambda: access.find(ONE)).code == "no_api_keys"
    access.configure(AccessConfig(anonymous=True))
    assert access.find(ONE).name == ""


def test_a_variable_has_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEYS", record("one"))
    access = Access("0.0.0.0")
    access.configure(AccessConfig(keys_env="MY_KEYS"))
    assert access.find(ONE).name == "one"
    assert refused(lambda: access.find(TWO)).code == "invalid_api_key"

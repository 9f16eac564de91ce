"""Who comes in to what isn't an endpoint for answers; and the size of headers."""

from collections.abc import MutableMapping
from typing import Any

import pytest

from app.access.access import Access
from app.access.guard import MAX_HEADER_BYTES, Guard, key_of, too_long
from app.access.secret import digest
from app.access.settings import AccessConfig
from app.endpoints import OPEN_PATHS

Message = MutableMapping[str, Any]
Headers = list[tuple[bytes, bytes]]
NOBODY: Headers = []
ONE: Headers = [(b"authorization", b"Bearer eh-one")]


@pytest.fixture
def access(monkeypatch: pytest.MonkeyPatch) -> Access:
    monkeypatch.setenv("MY_KEYS", f"[{{name: one, sha256: {digest(b'eh-one').hex()}}}]")
    access = Access("0.0.0.0")
    access.configure(AccessConfig(keys_env="MY_KEYS"))
    return access


async def ask(guard: Guard, path: str, headers: Headers, **scope: Any) -> list[Message]:
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("nothing is read before it is known who asks")

    async def send(message: Message) -> None:
        sent.append(message)

    await guard({"type": "http", "method": "GET", "path": path, "headers": headers, **scope}, receive, send)
    return sent


@pytest.fixture
def guard(access: Access) -> Guard:
    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await send({"key": key_of(scope).name if "enginehouse.key" in scope else None})

    return Guard(inner, access)


async def test_the_guard_tells_who_asks(guard: Guard) -> None:
    assert await ask(guard, "/v1/models", ONE) == [{"key": "one"}]


async def test_the_guard_refuses_before_anything_is_read(guard: Guard) -> None:
    start, body = await ask(guard, "/v1/models", NOBODY)
    assert start["status"] == 401
    assert (b"www-authenticate", b'Bearer realm="enginehouse"') in start["headers"]
    assert b'"code": "missing_api_key"' in body["body"] and b'"error"' in body["body"]
    _, body = await ask(guard, "/v1/messages", NOBODY)
    assert b'"authentication_error"' in body["body"]


@pytest.mark.parametrize("url", sorted(OPEN_PATHS))
async def test_what_is_open_needs_no_key(guard: Guard, url: str) -> None:
    assert await ask(guard, url, NOBODY) == [{"key": None}]
    assert await ask(guard, f"/under{url}", NOBODY, root_path="/under") == [{"key": None}]


@pytest.mark.parametrize(
    "url", ["/health\n", "/health/", "//health", "/HEALTH", "/health/../v1/models", "/under/health", ""]
)
async def test_nothing_else_is_open(guard: Guard, url: str) -> None:
    assert (await ask(guard, url, NOBODY))[0]["status"] == 401


async def test_what_is_no_request_passes(guard: Guard) -> None:
    assert await ask(guard, "", NOBODY, type="lifespan") == [{"key": None}]


# Headers


def test_headers_have_a_largest_size() -> None:
    most = MAX_HEADER_BYTES - len(b"x")
    assert too_long([]) is None
    assert too_long([(b"x", b"y" * most)]) is None
    for headers in ([(b"x", b"y" * (most + 1))], [(b"x" * 100, b"y" * 100)] * 400):
        error = too_long(headers)
        assert error is not None and (error.status, error.code) == (431, "headers_too_large")

import asyncio
import logging
import shutil
import ssl
import subprocess
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey
from pydantic import ValidationError

from deployments.errors import ApiError
from deployments.upstream import Upstream, explain
from deployments.upstream_args import UpstreamArgs, api_key, root_of, trust
from deployments.upstream_server import Server, choose
from tests.deployments.remote_server import Answer, Peer, Received, Remote, ok, remotes
from tests.waiting import until

KEY = "sk-very-secret-0123456789"
FAST: dict[str, Any] = {"health_interval_s": 0.02, "start_timeout_s": 60, "unhealthy_after": 2}


@asynccontextmanager
async def upstream(*servers: Remote, **args: Any) -> AsyncGenerator[Upstream]:
    created = Upstream(UpstreamArgs.model_validate(FAST | {"urls": [server.url for server in servers]} | args))
    try:
        await created.start()
        assert all(server.state != "new" for server in created.servers)
        yield created
    finally:
        await created.stop()


def saying(text: bytes, status: int = 200, headers: str = "") -> Answer:
    async def answer(_: Received, peer: Peer) -> None:
        await peer.answer(text, status, headers=headers)

    return answer


async def hang(_: Received, peer: Peer) -> None:
    await peer.left()


async def cut(_: Received, peer: Peer) -> None:
    peer.cut()


async def asked(servers: Upstream, body: bytes = b"{}") -> tuple[int, bytes]:
    reply = await servers.send("/completions", body, "id1")
    async with aclosing(reply):
        return reply.status, await reply.read(10_000)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr("deployments.upstream.logger", logging.getLogger("upstream"))  # Serve rules its own as it likes
    caplog.set_level(logging.INFO, "upstream")
    return caplog


# Settings


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("http://10.0.0.5:8000/v1", "http://10.0.0.5:8000/v1"),
        ("HTTPS://Example.COM/v1/", "https://example.com/v1"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("https://host/a/b//", "https://host/a/b"),
    ],
)
def test_urls_are_made_plain(url: str, plain: str) -> None:
    assert UpstreamArgs(urls=(url,)).urls == (plain,)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (f"http://user:{KEY}@host/v1", "no user and no password"),
        (f"http://{KEY}@host/v1", "no user and no password"),
        (f"http://host/v1?api_key={KEY}", r"no '\?'"),
        ("http://host/v1?", r"no '\?'"),
        ("http://host/v1#x", r"no '\?' and no '#'"),
        ("ftp://host/v1", "'http://' or 'https://'"),
        ("host:8000/v1", "'http://' or 'https://'"),
        ("http:///v1", "'http://' or 'https://'"),
        ("http://host:99999/v1", "[Pp]ort"),
        ("http://host:abc/v1", "[Pp]ort"),
        ("http://ho st/v1", "no spaces"),
        ("http://hööst/v1", "ASCII"),
        ("", "'http://' or 'https://'"),
    ],
)
def test_other_urls_are_refused_without_being_shown(url: str, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason) as caught:
        UpstreamArgs(urls=(url,))
    assert KEY not in str(caught.value)


def test_each_server_is_listed_once() -> None:
    with pytest.raises(ValidationError, match="URL 3 is the same"):
        UpstreamArgs(urls=("http://a/v1", "http://b/v1", "http://A/v1/"))
    with pytest.raises(ValidationError):
        UpstreamArgs(urls=())


@pytest.mark.parametrize(
    "args",
    [{"api_key_env": "sk-abc"}, {"api_key_env": "A=B"}, {"health_path": "health"}, {"health_path": "/a b"}]
    + [{"connect_timeout_s": 0}, {"read_timeout_s": 0}, {"unhealthy_after": 0}, {"health_interval_s": 0}]
    + [{"verify_tls": False, "ca_file": "x"}, {"max_answer_bytes": 1}, {"retries": 3}],
    ids=str,
)
def test_other_values_and_keys_are_refused(args: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        UpstreamArgs.model_validate({"urls": ["http://a/v1"]} | args)


def test_the_key_comes_from_the_environment() -> None:
    args = UpstreamArgs(urls=("http://a/v1",), api_key_env="REMOTE_KEY")
    assert api_key(args, {"REMOTE_KEY": f" {KEY}\n"}) == KEY
    assert api_key(UpstreamArgs(urls=("http://a/v1",)), {"REMOTE_KEY": KEY}) is None
    for missing in ({}, {"REMOTE_KEY": ""}, {"REMOTE_KEY": " \n"}):
        with pytest.raises(ValueError, match="'REMOTE_KEY'.*'api_key_env'.*is not set"):
            api_key(args, missing)
    for unsendable in (f"{KEY}\nx: y", f"{KEY}ü", f"{KEY} {KEY}"):
        with pytest.raises(ValueError, match="no HTTP header") as caught:
            api_key(args, {"REMOTE_KEY": unsendable})
        assert KEY not in str(caught.value)


def test_whom_to_trust(tmp_path: Path) -> None:
    assert trust(UpstreamArgs(urls=("https://a/v1",))) is True
    assert trust(UpstreamArgs(urls=("https://a/v1",), verify_tls=False)) is False
    for name, text in (("missing.pem", None), ("empty.pem", "")):
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=f"'ca_file' .*{name}: "):
            trust(UpstreamArgs(urls=("https://a/v1",), ca_file=str(tmp_path / name)))


def test_the_root_is_the_url_without_its_version() -> None:
    assert root_of("http://a/v1") == "http://a"
    assert root_of("http://a/x/v1") == "http://a/x"
    assert root_of("http://a/api") == "http://a/api"


# Choosing


def server(name: str, in_flight: int = 0, turn: int = 0, state: Any = "up") -> Server:
    return Server(name, state=state, in_flight=in_flight, turn=turn)


def test_the_least_busy_server_that_is_up_is_chosen() -> None:
    a, b, c = server("a", 2), server("b", 1), server("c", 0, state="down")
    assert choose([a, b, c]) is b
    assert choose([a, b, c], [b]) is a
    assert choose([a, b, c], [a, b]) is None
    assert choose([server("d", state="new")]) is None
    assert choose([]) is None


def test_of_equals_the_one_that_waited_longest_is_chosen() -> None:
    assert choose([server("a", turn=3), server("b", turn=2), server("c", turn=5)]).url == "b"  # type: ignore[union-attr]
    assert choose([server("a", 1, turn=1), server("b", 0, turn=9)]).url == "b"  # type: ignore[union-attr]


async def test_requests_one_by_one_go_round() -> None:
    async with remotes(ok, ok, ok) as there, upstream(*there) as servers:
        for _ in range(6):
            await asked(servers)
        assert [len(remote.received) for remote in there] == [2, 2, 2]
        assert servers.in_flight == 0


async def test_requests_at_once_are_spread() -> None:
    async with remotes(hang, hang) as there, upstream(*there) as servers:
        tasks = [asyncio.create_task(asked(servers)) for _ in range(10)]
        await until(lambda: sum(len(remote.received) for remote in there) == 10)
        assert [len(remote.received) for remote in there] == [5, 5]
        assert servers.in_flight == 10
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert servers.in_flight == 0


# Sending


async def test_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMOTE_KEY", KEY)
    body = b' {"a" : "\xc3\xa9"}\n'
    async with remotes(ok) as (there,), upstream(there, api_key_env="REMOTE_KEY") as servers:
        await asked(servers, body)
        (received,) = there.received
        assert (received.path, received.body) == ("/v1/completions", body)
        assert received.headers.pop("host") == f"127.0.0.1:{there.port}"  # type: ignore[attr-defined]
        assert received.headers == {
            "accept": "*/*",
            "accept-encoding": "identity",
            "authorization": f"Bearer {KEY}",
            "content-length": str(len(body)),
            "content-type": "application/json",
            "user-agent": "enginehouse",
            "x-request-id": "id1",
        }


async def test_no_proxy_and_no_netrc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    async with remotes(ok) as (there,), upstream(there) as servers:
        assert (await asked(servers))[0] == 200
        assert "authorization" not in there.received[0].headers


@pytest.mark.parametrize("broken", ["refused", "cut"])
async def test_the_next_server_takes_over_before_an_answer(broken: str) -> None:
    async with remotes(cut, saying(b"good")) as (bad, good), upstream(bad, good, health_interval_s=60) as servers:
        if broken == "refused":
            await bad.stop()
        for _ in range(4):
            assert await asked(servers) == (200, b"good")
        assert len(good.received) == 4
        assert servers.servers[0].state == "down"  # after two in a row, without a health check
        assert servers.in_flight == 0


async def test_each_server_is_tried_once_and_then_it_is_a_503() -> None:
    async with remotes(cut, cut, cut) as there, upstream(*there, health_interval_s=60) as servers:
        with pytest.raises(ApiError) as caught:
            await asked(servers)
        assert [len(remote.received) for remote in there] == [1, 1, 1]
        error = caught.value
        assert (error.status, error.code, error.headers) == (503, "upstream_down", {"retry-after": "5"})
        assert "connection lost before an answer" in error.message
        assert "127.0.0.1" not in error.message
        assert servers.in_flight == 0


async def test_connecting_has_its_own_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.upstream.KEEP_ALIVE_S", 0.0)
    async with remotes(ok) as (there,), upstream(there, connect_timeout_s=0.2, health_interval_s=60) as servers:
        monkeypatch.setattr(servers.client.connector, "_wrap_create_connection", swallowed)
        with pytest.raises(ApiError) as caught:
            await asked(servers)
        assert caught.value.status == 503
        assert "connect_timeout_s" in caught.value.message


async def swallowed(*_: object, **__: object) -> None:
    """As connecting is to a host that swallows what is sent to it."""
    await asyncio.sleep(60)  # longer than anybody waits


async def test_a_server_that_hangs_is_a_504_and_not_tried_elsewhere() -> None:
    async with remotes(hang, ok) as there, upstream(*there, read_timeout_s=0.15) as servers:
        began = time.monotonic()
        with pytest.raises(ApiError) as caught:
            await asked(servers)
        assert time.monotonic() - began < 2
        assert (caught.value.status, caught.value.code) == (504, "upstream_timeout")
        assert "0.15 s (read_timeout_s)" in caught.value.message
        assert [len(remote.received) for remote in there] == [1, 0]
        assert servers.in_flight == 0


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_server_s_request_goes_to_the_next(status: int) -> None:
    async with remotes(saying(b"busy", status), saying(b"free")) as there, upstream(*there) as servers:
        assert await asked(servers) == (200, b"free")
        assert [len(remote.received) for remote in there] == [1, 1]
        assert servers.servers[0].state == "up"
        assert servers.in_flight == 0


async def test_the_last_busy_server_s_answer_is_passed_on() -> None:
    async with remotes(saying(b"a", 429), saying(b"b", 503)) as there, upstream(*there) as servers:
        assert await asked(servers) == (503, b"b")
        assert servers.in_flight == 0


@pytest.mark.parametrize("status", [400, 404, 500, 502, 302])
async def test_any_other_answer_is_final(status: int) -> None:
    async with remotes(saying(b"x", status), ok) as there, upstream(*there) as servers:
        assert await asked(servers) == (status, b"x")
        assert len(there[1].received) == 0


async def test_a_busy_server_and_one_that_is_gone() -> None:
    async with remotes(saying(b"a", 429), cut) as there, upstream(*there, health_interval_s=60) as servers:
        with pytest.raises(ApiError, match="status 429, connection lost before an answer") as caught:
            await asked(servers)
        assert caught.value.status == 503


async def test_closing_a_reply_ends_the_request_at_the_server() -> None:
    left = asyncio.Event()

    async def endless(_: Received, peer: Peer) -> None:
        await peer.begin()
        await peer.chunk(b"one")
        await peer.left()
        left.set()

    async with remotes(endless) as (there,), upstream(there) as servers:
        reply = await servers.send("/completions", b"{}", "id1")
        async with aclosing(reply.chunks()) as chunks:
            assert await anext(chunks) == b"one"
        assert servers.in_flight == 1
        await reply.aclose()
        await reply.aclose()
        assert servers.in_flight == 0
        await asyncio.wait_for(left.wait(), 60)


async def test_an_answer_has_a_largest_size() -> None:
    async with remotes(saying(b"x" * 1000)) as (there,), upstream(there) as servers:
        for limit, fits in ((1000, True), (999, False)):
            async with aclosing(await servers.send("/completions", b"{}", "id1")) as reply:
                if fits:
                    assert len(await reply.read(limit)) == 1000
                else:
                    with pytest.raises(ApiError, match="larger than 999 bytes"):
                        await reply.read(limit)


# Health


async def test_start_waits_for_one_server() -> None:
    async with remotes(ok, ok) as (slow, gone):
        slow.health = 503
        await gone.stop()
        servers = Upstream(UpstreamArgs.model_validate(FAST | {"urls": [slow.url, gone.url]}))
        starting = asyncio.create_task(servers.start())
        await until(lambda: slow.checks > 2)
        assert not starting.done()
        slow.health = 200
        await asyncio.wait_for(starting, 60)
        await servers.stop()


async def test_start_names_the_servers_that_are_down() -> None:
    async with remotes(ok, ok) as (ill, gone):
        ill.health = 500
        await gone.stop()
        servers = Upstream(UpstreamArgs.model_validate(FAST | {"urls": [ill.url, gone.url], "start_timeout_s": 0.2}))
        with pytest.raises(TimeoutError) as caught:
            await servers.start()
        assert f"{ill.url}: status 500 at a health check" in str(caught.value)
        assert f"{gone.url}: connection refused" in str(caught.value)
        await servers.stop()
        await servers.stop()


async def test_start_without_the_key_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REMOTE_KEY", raising=False)
    servers = Upstream(UpstreamArgs(urls=("http://127.0.0.1:9/v1",), api_key_env="REMOTE_KEY"))
    with pytest.raises(ValueError, match="'REMOTE_KEY'"):
        await servers.start()
    await servers.stop()


async def test_a_server_without_a_health_path_is_asked_for_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMOTE_KEY", KEY)
    async with remotes(ok) as (there,):
        there.health = 404
        async with upstream(there, api_key_env="REMOTE_KEY") as servers:
            assert servers.servers[0].state == "up"
            there.models = (401, {"error": {"message": f"bad key {KEY}"}})
            await until(lambda: servers.servers[0].state == "down")
            assert servers.servers[0].reason == "the API key is refused, status 401 at a health check"


async def test_the_log_has_each_change_once(log: pytest.LogCaptureFixture) -> None:
    async with remotes(ok, ok) as (first, second), upstream(first, second) as servers:
        flipping = servers.servers[0]
        for _ in range(2):
            first.health = 500
            await until(lambda: flipping.state == "down")
            checks = first.checks
            await until(lambda seen=checks: first.checks > seen + 3)  # type: ignore[misc]
            assert await asked(servers) == (200, b'{"model":"org/remote"}')
            first.health = 200
            await until(lambda: flipping.state == "up")
        assert len(first.received) == 0
    down, up = f"remote server {first.url} is down: status 500 at a health check", f"remote server {first.url} is up"
    assert [message for message in log.messages if first.url in message] == [up, down, up, down, up]
    assert [message for message in log.messages if second.url in message] == [f"remote server {second.url} is up"]


async def test_one_failed_check_is_none() -> None:
    async with remotes(ok) as (there,), upstream(there, unhealthy_after=3, health_interval_s=60) as servers:
        (watched,) = servers.servers
        there.health = 500
        for failures, state in ((1, "up"), (2, "up"), (3, "down")):
            await servers._check(watched)
            assert (watched.failures, watched.state) == (failures, state)
        there.health = 200
        await servers._check(watched)
        assert (watched.failures, watched.state) == (0, "up")


async def test_a_server_that_is_busy_answering_is_not_down() -> None:
    async with remotes(ok) as (there,):
        args = {"connect_timeout_s": 0.1, "health_interval_s": 60, "unhealthy_after": 1}
        async with upstream(there, **args) as servers:
            (watched,) = servers.servers
            there.silent = True
            watched.spoke = True
            await servers._check(watched)
            assert watched.state == "up"
            await servers._check(watched)
            assert (watched.state, watched.reason) == ("down", "no answer to a health check within 0.1 s")


async def test_all_down_is_a_503_at_once() -> None:
    async with remotes(ok) as (there,), upstream(there) as servers:
        await there.stop()
        await until(lambda: servers.servers[0].state == "down")
        with pytest.raises(ApiError, match="connection refused") as caught:
            await asked(servers)
        assert (caught.value.status, caught.value.headers) == (503, {"retry-after": "5"})
        await there.start()
        await until(lambda: servers.servers[0].state == "up")
        assert (await asked(servers))[0] == 200


async def test_a_hanging_server_does_not_delay_the_others_checks() -> None:
    async with remotes(ok, ok) as (stuck, good):
        stuck.silent = True
        args = FAST | {"urls": [stuck.url, good.url], "connect_timeout_s": 0.2}
        servers = Upstream(UpstreamArgs.model_validate(args))
        await asyncio.wait_for(servers.start(), 2)
        await until(lambda: good.checks > 3)
        assert (await asked(servers))[0] == 200
        await servers.stop()


async def test_a_watcher_that_dies_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with remotes(ok) as (there,), upstream(there) as servers:
        servers.raise_if_unwatched()

        async def fail(_: Server) -> None:
            raise LookupError("a defect")

        monkeypatch.setattr(servers, "_check", fail)
        await until(lambda: servers._watchers[0].done())
        with pytest.raises(LookupError):
            servers.raise_if_unwatched()


async def test_small_documents() -> None:
    async with remotes(ok) as (there,), upstream(there, connect_timeout_s=0.3) as servers:
        there.metrics = b"x" * 100
        assert await servers.get(f"http://127.0.0.1:{there.port}/metrics", 100) == b"x" * 100
        with pytest.raises(ValueError, match="longer than 99 bytes"):
            await servers.get(f"http://127.0.0.1:{there.port}/metrics", 99)
        with pytest.raises(aiohttp.ClientResponseError):
            await servers.get(f"{there.url}/nothing", 100)


THERE = ConnectionKey("10.0.0.1", 443, True, True, None, None, None)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (aiohttp.ConnectionTimeoutError("x"), "connect_timeout_s"),
        (aiohttp.ClientConnectorCertificateError(THERE, ssl.CertificateError("x")), "certificate"),
        (aiohttp.ClientConnectorSSLError(THERE, ssl.SSLError("x")), "TLS"),
        (aiohttp.ClientConnectorError(THERE, OSError("x")), "refused or no such host"),
        (aiohttp.ClientOSError("x"), "connection lost"),
        (aiohttp.ServerDisconnectedError("http://10.0.0.1"), "connection lost"),
        (aiohttp.SocketTimeoutError("x"), "timed out"),
        (aiohttp.InvalidURL("http://10.0.0.1"), "not a URL"),
    ],
)
def test_what_went_wrong_in_words(error: Exception, words: str) -> None:
    assert words in explain(error)
    assert "10.0.0.1" not in explain(error)


async def test_certificates_are_checked(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", *subject]
    making = [*new, "-keyout", str(key), "-out", str(certificate)]
    await asyncio.to_thread(subprocess.run, making, check=True, capture_output=True, timeout=20)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    there = Remote(tls=tls)
    await there.start()
    untrusted = Upstream(UpstreamArgs.model_validate(FAST | {"urls": [there.url], "start_timeout_s": 0.5}))
    with pytest.raises(TimeoutError, match="its certificate isn't trusted"):
        await untrusted.start()
    await untrusted.stop()
    for args in ({"verify_tls": False}, {"ca_file": str(certificate)}):
        async with upstream(there, **args) as servers:
            assert (await asked(servers))[0] == 200
    await there.stop()

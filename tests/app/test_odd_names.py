"""Names that no model has, in bodies and in paths; and that nothing of a request comes into a log or a header."""

import json
import logging
import re
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from pydantic import ValidationError

from app.access.access import Access
from app.config import IngressConfig
from app.endpoints import ROUTES
from app.gateway import Gateway
from tests.app.access.test_keys_at_the_door import CHAT, CONFIG, FakePools

SECRET = "zq7-nobody-may-see-this"
GENERATE = [path for route in ROUTES for path in route.paths]
ODD = [
    "../../etc/passwd",
    "/etc/passwd",
    "file:///etc/passwd",
    "http://169.254.169.254/latest",
    "%2e%2e/%2e%2e",
    "m\r\nx-injected: 1",
    "m\n",
    "m\0",
    "\0",
    "",
    " ",
    " m",
    "M",
    "m/",
    "m\u200b",
    "\N{GRINNING FACE}" * 100,
    "__proto__",
    "constructor",
    "__class__",
    "{m}",
    "${jndi:ldap://a}",
    "'; drop table models;--",
    "<script>alert(1)</script>",
    "[!m]",
    "*",
    "\x1b[31m",
    "\u202e" + "m",
    "x" * 100_000,
]
CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


@pytest.fixture
def pools() -> FakePools:
    return FakePools()


@pytest.fixture
def gateway(pools: FakePools) -> Gateway:
    gateway = Gateway(pools, access=Access("127.0.0.1"))
    gateway.configure(IngressConfig.model_validate(CONFIG))
    return gateway


def check(response: httpx.Response, pools: FakePools, caplog: pytest.LogCaptureFixture) -> None:
    told = response.json()["error"]
    assert response.status_code in (400, 404) and told["param"] in ("model", None)
    assert len(told["message"]) < 400
    assert not any(CONTROL.search(part) for header in response.headers.raw for part in header)
    assert not [name for name in response.headers if name.startswith(("x-injected", "x-enginehouse"))]
    assert pools.asked == 0
    assert [record for record in caplog.records if record.name == "ray.serve"] == []


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/tokenize", "/v1/rerank"])
@pytest.mark.parametrize("name", ODD, ids=lambda name: ascii(name[:20]))
async def test_in_a_body(
    client: httpx.AsyncClient, pools: FakePools, caplog: pytest.LogCaptureFixture, path: str, name: str
) -> None:
    caplog.set_level(logging.DEBUG)
    check(await client.post(path, json={"model": name}), pools, caplog)


@pytest.mark.parametrize("name", [name for name in ODD if name and len(name) < 1000], ids=lambda name: ascii(name[:20]))
async def test_in_a_path(
    client: httpx.AsyncClient, pools: FakePools, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    caplog.set_level(logging.DEBUG)
    check(await client.get(f"/v1/models/{quote(name, safe='')}"), pools, caplog)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "\\ud800"}',
        b'{"model": "\\udc00\\ud800"}',
        b'{"model": "\xed\xa0\x80"}',
        b'{"model": "\xff"}',
        b'{"model": ["m"]}',
        b'{"model": {"__proto__": "m"}}',
        b'{"model": null}',
        b'{"model": 1}',
        b'{"__proto__": {"model": "m"}}',
    ],
)
async def test_what_is_no_name(
    client: httpx.AsyncClient, pools: FakePools, caplog: pytest.LogCaptureFixture, body: bytes
) -> None:
    for path in GENERATE:
        check(await client.post(path, content=body), pools, caplog)


@pytest.mark.parametrize("name", ["a\r\nx: y", "a\0", "\N{GRINNING FACE}", "", "\xe9"])
def test_a_pool_s_name_can_be_put_into_a_header(name: str) -> None:
    for config in (
        {"models": {"m": {"pools": [name]}}},
        {"routes": [{"name": "r", "pools": [name]}]},
        {"routes": [{"name": "r", "pools": {name: 1}}]},
        {"routes": [{"name": "r", "canary": {"pool": name, "percent": 1}}]},
    ):
        with pytest.raises(ValidationError):
            IngressConfig.model_validate(config)


async def test_nothing_of_a_request_or_its_answer_is_logged(
    client: httpx.AsyncClient, pools: FakePools, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    body: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": SECRET}],
        "user": SECRET,
        "metadata": {"conversation_id": SECRET},
        "tools": [{"function": {"name": SECRET}}],
        SECRET: SECRET,
    }
    headers = {"x-secret": SECRET, "cookie": SECRET, "authorization": f"Bearer {SECRET}", "x-conversation-id": SECRET}
    pools.fakes["a"].body = json.dumps({"choices": [{"text": SECRET}]}).encode()
    bodies = [
        body,
        {**body, "stream": "yes"},
        {**body, "model": SECRET},
        {**body, "metadata": {"request_type": SECRET}},
    ]
    statuses = set()
    for path in GENERATE:
        for each in bodies:
            statuses.add((await client.post(path, json=each, headers=headers)).status_code)
        statuses.add((await client.post(path, content=f'{{"{SECRET}', headers=headers)).status_code)
    pools.fakes["a"].error = ValueError("inside")
    statuses.add((await client.post(CHAT, json=body, headers=headers)).status_code)
    statuses.add((await client.get(f"/v1/models/{SECRET}", headers=headers)).status_code)
    assert statuses == {200, 400, 404, 500}
    ours = [record for record in caplog.records if not record.name.startswith(("httpx", "httpcore", "asyncio"))]
    logged = "".join(f"{record.getMessage()}{record.exc_text}{record.args}" for record in ours)
    assert "the ingress failed" in logged
    assert SECRET not in logged

"""Where the server listens, and whether it may without keys."""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve import context
from ray.serve._private import controller
from ray.serve._private.client import ServeControllerClient
from ray.serve.config import HTTPOptions

from app.access.listening import is_loopback, served_host, unprotected
from app.access.settings import AccessConfig


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)
    assert unprotected(host, AccessConfig()) is None


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.5", "192.168.1.1", "", "name.example", "localhost.evil", "2130706433"]
)
def test_what_others_may_reach(host: str) -> None:
    assert not is_loopback(host)
    assert unprotected(host, AccessConfig()) == (
        f"Whoever reaches '{host}' could use the models, for it isn't loopback and there are no API keys: set "
        "'access.keys_file' in the ingress's user_config ('enginehouse keys new' makes a key), or say "
        "'access: {anonymous: true}' there."
    )


@pytest.mark.parametrize(
    "access", [AccessConfig(keys_file="/keys.yaml"), AccessConfig(keys_env="MY_KEYS"), AccessConfig(anonymous=True)]
)
def test_what_makes_it_right(access: AccessConfig) -> None:
    assert unprotected("0.0.0.0", access) is None


def test_serve_tells_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    client = SimpleNamespace(http_config=HTTPOptions(host="0.0.0.0"))
    monkeypatch.setattr(context, "_get_global_client", lambda: client)
    assert served_host() == "0.0.0.0"


def test_serve_that_tells_nothing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Any:
        raise RuntimeError("gone")

    monkeypatch.setattr(context, "_get_global_client", fail)
    assert served_host() is None
    assert caplog.messages == ["Serve doesn't say where it listens: RuntimeError('gone')"]


def test_what_is_relied_on_of_serve() -> None:
    """The client asks the controller for its HTTP options, and keeps them."""
    assert "raise_if_no_controller_running" in inspect.signature(context._get_global_client).parameters
    assert isinstance(vars(ServeControllerClient)["http_config"], property)
    assert "get_http_config.remote()" in inspect.getsource(ServeControllerClient.__init__)
    assert "def get_http_config(self) -> HTTPOptions:" in inspect.getsource(controller)
    assert "host" in HTTPOptions.model_fields

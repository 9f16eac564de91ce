"""Where the server listens, and whether that is for others than this machine."""

import ipaddress
import logging
from importlib import import_module
from typing import Any

from app.access.settings import AccessConfig

logger = logging.getLogger("ray.serve")

LOOPBACK = "127.0.0.1"
REMEDY = (
    "set 'access.keys_file' in the ingress's user_config ('enginehouse keys new' makes a key), "
    "or say 'access: {anonymous: true}' there"
)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address. A name is taken for one that others reach, but for `localhost`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def unprotected(host: str, access: AccessConfig) -> str | None:
    """What is wrong with serving on `host`, and what to do; None where nothing is."""
    if access.has_keys or access.anonymous or is_loopback(host):
        return None
    return f"Whoever reaches '{host}' could use the models, for it isn't loopback and there are no API keys: {REMEDY}."


def served_host() -> str | None:
    """The address that Serve listens on; None where it doesn't say. It asks Serve's controller, and waits for it."""
    # A private function, and the only way: nothing public tells a replica where its proxy listens.
    context: Any = import_module("ray.serve.context")
    try:
        host: str | None = context._get_global_client().http_config.host
    except Exception as error:
        logger.error("Serve doesn't say where it listens: %r", error)
        return None
    return host

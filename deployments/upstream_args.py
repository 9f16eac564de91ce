"""How to reach servers that run elsewhere: the settings that every engine of that kind has."""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, field_validator, model_validator

from deployments.engine_args import EngineArgs


class UpstreamArgs(EngineArgs):
    """Servers that give the same answers, and how to talk to them."""

    # Values stay out of error messages: a URL may hold a password before it is refused.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    urls: tuple[str, ...] = Field(
        min_length=1,
        description="Where the servers are, `http://` or `https://`, up to and with the API's own path "
        "(`http://10.0.0.5:8000/v1`). Each request goes to the healthy one with the fewest of this pool's.",
    )
    api_key_env: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="Name of the environment variable with the servers' API key, sent as `Authorization: Bearer`.",
    )
    connect_timeout_s: float = Field(
        5, gt=0, le=600, description="Seconds for a connection, and for the answer to a health check."
    )
    read_timeout_s: float = Field(
        600, gt=0, le=86400, description="Seconds without a byte after which an answer is given up, with a 504."
    )
    start_timeout_s: float = Field(
        60, gt=0, le=86400, description="Seconds for a first server to be healthy when the pool starts."
    )
    health_path: str = Field(
        "/health",
        pattern=r"^/[!-~]*$",
        description="Path of the health check, from the server's root: the URL without its `/v1`. Where it is a 404, "
        "the list of models is asked for instead.",
    )
    health_interval_s: float = Field(5, gt=0, le=3600, description="Seconds between two health checks of a server.")
    unhealthy_after: int = Field(
        3, ge=1, le=100, description="Failed health checks or connections in a row, after which a server gets nothing."
    )
    max_answer_bytes: int = Field(
        2**26, ge=1024, description="Largest whole answer, or line of a stream, in bytes; a larger one is a 502."
    )
    verify_tls: bool = Field(True, description="Whether the certificate of an `https://` server is checked.")
    ca_file: str | None = Field(
        None, min_length=1, description="A file of certificates (PEM) to trust, instead of the public ones."
    )

    @field_validator("urls")
    @classmethod
    def _plain_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        plain = tuple(map(_plain, urls))
        for index, url in enumerate(plain):
            if url in plain[:index]:
                raise ValueError(f"URL {index + 1} is the same as one before it; each server is listed once")
        return plain

    @model_validator(mode="after")
    def _ca_file_is_used(self) -> Self:
        if self.ca_file is not None and not self.verify_tls:
            raise ValueError("'ca_file' has no effect where 'verify_tls' is false")
        return self


def api_key(args: UpstreamArgs, environ: Mapping[str, str]) -> str | None:
    """The servers' API key, if they need one.

    Raises:
        ValueError: the variable isn't set, or what it holds can't be sent. The key is not in the message.
    """
    if args.api_key_env is None:
        return None
    key = environ.get(args.api_key_env, "").strip()
    where = f"the environment variable '{args.api_key_env}', which 'api_key_env' names,"
    if not key:
        raise ValueError(f"{where} is not set on this node")
    if not all("!" <= character <= "~" for character in key):
        raise ValueError(f"{where} holds characters that no HTTP header may have")
    return key


def trust(args: UpstreamArgs) -> ssl.SSLContext | bool:
    """What aiohttp takes for `ssl`.

    Raises:
        ValueError: `ca_file` can't be read, or holds no certificates.
    """
    if args.ca_file is None:
        return args.verify_tls
    try:
        return ssl.create_default_context(cafile=str(Path(args.ca_file).expanduser()))
    except OSError as error:  # ssl.SSLError is one
        raise ValueError(f"'ca_file' {args.ca_file}: {error.strerror or error}") from error


def root_of(url: str) -> str:
    """A server's root: its URL without the version that ends the API's path."""
    return url.removesuffix("/v1")


def _plain(url: str) -> str:
    """The URL without a slash at its end, the host in lower case."""
    if not url.isascii() or any(character <= " " for character in url):
        raise ValueError("a URL has no spaces, and no characters outside ASCII")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("a URL begins with 'http://' or 'https://' and a host")
    if "@" in parts.netloc:
        raise ValueError("a URL holds no user and no password; the API key comes from 'api_key_env'")
    if "?" in url or "#" in url:
        raise ValueError("a URL has no '?' and no '#'")
    _ = parts.port  # raises where it is none
    return f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}"

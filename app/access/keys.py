"""API keys, and the finding of a request's."""

import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from app.access.secret import digest
from app.access.settings import KeyRecord
from app.routing.names import shorten
from app.routing.route import Headers
from deployments.errors import ApiError

ALL = "*"
HOW = "Send it as 'Authorization: Bearer KEY', or as 'x-api-key: KEY'."
CHALLENGE = 'Bearer realm="enginehouse"'  # RFC 6750, section 3


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a key may ask for, from all ingress replicas together. None: any amount."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrent: int | None = None

    def __bool__(self) -> bool:
        return not (self.requests_per_minute is self.tokens_per_minute is self.max_concurrent is None)


@dataclass(frozen=True, slots=True)
class Key:
    """Who asks, and what they may."""

    name: str  # "": nobody has to have a key
    tenant: str
    models: tuple[str, ...] = (ALL,)
    admin: bool = False
    limits: Limits = Limits()
    digest: bytes = field(default=b"", repr=False)

    @property
    def unrestricted(self) -> bool:
        return ALL in self.models

    def may_ask(self, model: str) -> bool:
        """Whether it may ask for a model of this name, if there is one."""
        return any(fnmatchcase(model, pattern) for pattern in self.models)

    def sees(self, model: str) -> bool:
        """Whether it may know of a model: an admin key may of all, to change them."""
        return self.admin or self.may_ask(model)


def read_key(record: KeyRecord) -> Key:
    models = record.models if record.models is not None else () if record.admin else (ALL,)
    limits = Limits(record.requests_per_minute, record.tokens_per_minute, record.max_concurrent)
    return Key(record.name, record.tenant or record.name, models, record.admin, limits, bytes.fromhex(record.sha256))


class KeyRing:
    """The keys there are, by what is kept of their secrets."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._keys: Mapping[bytes, Key] = {key.digest: key for key in keys}

    def names(self) -> frozenset[str]:
        return frozenset(key.name for key in self._keys.values())

    def find(self, headers: Headers) -> Key:
        """The key that a request shows: one hash and one look-up.

        The look-up is by the hash of what was sent, whose bytes nobody can choose, so its time tells nothing.

        Raises:
            ApiError: 401; it shows none, or one that isn't there.
        """
        shown = _shown(headers)
        if shown is None:
            raise _unauthorized(f"This server asks for an API key. {HOW}", "missing_api_key", CHALLENGE)
        found = digest(shown)
        key = self._keys.get(found)
        if key is None or not hmac.compare_digest(key.digest, found):
            challenge = f'{CHALLENGE}, error="invalid_token"'
            raise _unauthorized("This API key isn't valid here.", "invalid_api_key", challenge)
        return key


def may_ask(key: Key, model: str, there_is: Callable[[str], bool]) -> None:
    """Refuse a model that the key may not ask for.

    As OpenAI's API does, in the words of a model that isn't there: which others there are is none of its business.

    Raises:
        ApiError: 404.
    """
    if not key.unrestricted and not (key.may_ask(model) and there_is(model)):
        raise _unknown(key, model)


def may_see(key: Key, model: str, there_is: Callable[[str], bool]) -> None:
    """As `may_ask`, for looking at a model.

    Raises:
        ApiError: 404.
    """
    if not key.admin:
        may_ask(key, model, there_is)


def must_be_admin(key: Key) -> None:
    """Refuse what changes the server.

    Raises:
        ApiError: 403.
    """
    if not key.admin:
        who = f"the key '{key.name}' is none" if key.name else "this server has none, so nobody may"
        raise ApiError(403, f"This takes an admin key; {who}.", code="admin_key_required")


def _unknown(key: Key, model: str) -> ApiError:
    message = (
        f"The model '{shorten(model)}' does not exist, or the key '{key.name}' may not use it. "
        "GET /v1/models lists those that it may."
    )
    return ApiError(404, message, param="model", code="model_not_found")


def _shown(headers: Headers) -> bytes | None:
    """What a request shows as its key. `Authorization` comes before `x-api-key`, if it is of our scheme."""
    shown = None
    for name, value in headers:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            return value[7:].strip() or None
        if name == b"x-api-key" and shown is None:
            shown = value.strip() or None
    return shown


def _unauthorized(message: str, code: str, challenge: str) -> ApiError:
    return ApiError(401, message, code=code, headers={"www-authenticate": challenge})

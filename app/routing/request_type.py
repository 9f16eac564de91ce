"""Which type a request is of: what it says itself, else what it looks like."""

from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from typing import get_args

from app.routing.request import EMBEDDING, Request, opening
from app.routing.settings import RequestType, RequestTypes
from deployments.errors import ApiError

TYPES: tuple[RequestType, ...] = get_args(RequestType)
HEADER = "x-request-type"
FIELD = "metadata.request_type"


def classify(
    request: Request, said: str | None, types: RequestTypes, seen: Callable[[str], bool]
) -> tuple[RequestType, str]:
    """A request's type, and why. `said`: its header; `seen`: whether a prompt began like this before.

    Raises:
        ApiError: 400, the request says a type that there isn't.
    """
    document = request.document
    if said is not None:
        return _known(said, f"header {HEADER}", HEADER), f"header {HEADER}"
    if (named := document.metadatum("request_type")) is not None:
        return _known(named, FIELD, FIELD), FIELD
    if document.service_tier == "flex":
        return "batch", "service_tier flex"
    if request.endpoint in EMBEDDING:
        return "embedding", f"endpoint {request.endpoint}"
    return _by_shape(request, types, seen)


def _known(name: str, where: str, param: str) -> RequestType:
    if name not in TYPES:
        message = f"Invalid value for '{param}': there is no request type '{name[:40]}'; there are: {', '.join(TYPES)}."
        raise ApiError(400, message, param=param, code="invalid_value")
    return name


def _by_shape(request: Request, types: RequestTypes, seen: Callable[[str], bool]) -> tuple[RequestType, str]:
    if request.messages >= types.multi_turn_messages:
        return "multi_turn", f"{request.messages} messages"
    if request.prompt_tokens >= types.multi_turn_prompt_tokens:
        return "multi_turn", f"about {request.prompt_tokens} prompt tokens"
    if request.prompt_tokens >= types.shared_prefix_tokens:
        begins = opening(request.document, int(types.shared_prefix_tokens * types.characters_per_token))
        if begins is not None and seen(begins):
            return "multi_turn", "a prefix seen before"
    if not request.stream and (request.max_tokens or 0) >= types.batch_max_tokens:
        return "batch", f"not streamed, {request.max_tokens} tokens at most"
    return "chat", "streamed" if request.stream else "short"


class Seen:
    """How prompts began, as far as this process remembers: the last so many."""

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._digests: OrderedDict[bytes, None] = OrderedDict()

    def __call__(self, text: str) -> bool:
        """Whether a prompt began like this before; from now on, one did."""
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        known = digest in self._digests
        self._digests[digest] = None
        self._digests.move_to_end(digest)
        if len(self._digests) > self._most:
            self._digests.popitem(last=False)
        return known

"""What is asked: every path that there is, with inputs of its own, and paths that there aren't."""

from collections.abc import Mapping
from urllib.parse import quote

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from app.endpoints import ROUTES
from tests.fuzz.bodies import bodies, names, pieces
from tests.fuzz.documents import DOCUMENTS, LOAD, UNLOAD, Document
from tests.fuzz.headers import headers, known
from tests.fuzz.inputs import Input, Leaves

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get", "X-Y", "PROPFIND"]
_PATHS = [
    "/",
    "",
    "//",
    "/v1",
    "/v1/",
    "/v1/models/",
    "/v1/models",
    "/health",
    "/ready",
    "/docs",
    "/redoc",
    "/openapi.json",
]
_PATHS += [
    "/docs/oauth2-redirect",
    "/v1/chat/completions/",
    "/v1/chat",
    "/v1/../health",
    "//evil.example/health",
    "/health/",
]
_PATHS += [
    "/favicon.ico",
    "/%00",
    "/%ff%fe",
    "/v1/files",
    "/v1/audio/speech",
    "/metrics",
    "/-/healthz",
    "*",
    "http://x/health",
]
_PATHS += [path for route in ROUTES for path in route.paths]
_WEIRD = ["", "?", "?a=b&a", "?model=m", "?%ff=%00", "?" + "a" * 4000, "?stream=true", "#x"]
_LEAVES: list[Leaves] = ["never", "early", "late"]
leaves: SearchStrategy[Leaves] = st.integers(0, 19).map(lambda drawn: _LEAVES[max(0, drawn - 17)])


@st.composite
def posts(draw: DrawFn, paths: tuple[str, ...], documents: list[Document]) -> Input:
    """Requests that are sent to where they belong."""
    locked = draw(st.integers(0, 3)) == 0
    sent = draw(headers)
    if locked and draw(st.integers(0, 9)):
        sent = (*sent, *draw(known))
    return Input(
        "POST",
        draw(st.sampled_from(paths)) + (draw(st.sampled_from(_WEIRD)) if draw(st.integers(0, 9)) == 0 else ""),
        sent,
        draw(bodies(documents).flatmap(pieces)),
        draw(leaves),
        "locked" if locked else "open",
    )


@st.composite
def models(draw: DrawFn) -> Input:
    """Looking at models."""
    name = draw(names)
    written = name if isinstance(name, str) else repr(name)
    target = "/v1/models/" + quote(
        written.encode("utf-8", "surrogatepass"), safe=draw(st.sampled_from(["", "/", "/?#%"]))
    )
    locked = draw(st.booleans())
    sent = (*draw(headers), *(draw(known) if locked else ()))
    return Input("GET", draw(st.sampled_from([target, "/v1/models"])), sent, door="locked" if locked else "open")


@st.composite
def anywhere(draw: DrawFn) -> Input:
    """Any method of any path."""
    segments = st.lists(st.text(max_size=8), max_size=4).map(lambda parts: "/" + "/".join(map(_quoted, parts)))
    target = draw(st.sampled_from(_PATHS) | segments) + draw(st.sampled_from(_WEIRD))
    body = draw(st.just((b"",)) | bodies(DOCUMENTS["chat/completions"]).flatmap(pieces))
    sent, door = draw(headers), draw(st.sampled_from(["open", "open", "locked"]))
    method = draw(st.sampled_from(_METHODS))
    return Input(method, target, sent, body, draw(leaves), "locked" if door == "locked" else "open")


def _quoted(part: str) -> str:
    return quote(part.encode("utf-8", "surrogatepass"), safe="~.")


# Each with its part of all inputs.
TARGETS: Mapping[str, tuple[SearchStrategy[Input], float]] = {
    **{
        f"/v1/{route.endpoint}": (
            posts(route.paths, DOCUMENTS[route.endpoint]),
            {"chat/completions": 4.0, "completions": 3.0}.get(route.endpoint, 1.0),
        )
        for route in ROUTES
    },
    "LoRA adapters": (posts(("/v1/load_lora_adapter",), LOAD) | posts(("/v1/unload_lora_adapter",), UNLOAD), 1.5),
    "/v1/models": (models(), 1.0),
    "other paths": (anywhere(), 1.5),
}

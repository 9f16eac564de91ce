"""Bodies: requests that are nearly right, and bytes that are anything."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tests.fuzz.documents import MODELS, Document
from tests.fuzz.inputs import MARKER
from tests.fuzz.values import Pairs, Raw, like, nested, odd, texts, written

Path = tuple[Any, ...]

names: SearchStrategy[Any] = st.one_of(
    st.sampled_from(MODELS),
    st.sampled_from(
        ["../../etc/passwd", "m\x00", "m\r\nset-cookie: x", "", " m", "M", "a" * 5000, "*", "[a]", "\u00e9" * 300]
    ),
    odd,
)
FIELDS = [
    *("messages", "prompt", "input", "model", "stream", "n", "max_tokens", "logprobs", "top_logprobs", "stop", "tools"),
    *("tool_choice", "response_format", "text", "metadata", "service_tier", "logit_bias", "stream_options", "seed"),
    *("temperature", "top_p", "max_completion_tokens", "max_output_tokens", "system", "instructions", "documents"),
    *("query", "tokens", "functions", "prompt_cache_key", "priority", "request_id", "lora_path", "unknown", "Model"),
]


@st.composite
def bodies(draw: DrawFn, documents: list[Document]) -> bytes:
    """A body made from one of these: mostly a JSON object with some fields that are odd, sometimes hardly JSON."""
    document: Any = draw(st.sampled_from(documents))
    if "model" not in document and "lora_name" not in document:
        document = {"model": draw(names if draw(st.integers(0, 7)) == 0 else st.sampled_from(MODELS)), **document}
    for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2, 3]))):
        document = draw(changed(document))
    data = written(document)
    return draw(spoilt(data)) if draw(st.integers(0, 7)) == 0 else data


@st.composite
def changed(draw: DrawFn, document: Any) -> Any:
    """The document with one of its values, however deep, another; or without it, or with one more."""
    if isinstance(document, Pairs) or not document:
        return document
    way = draw(st.sampled_from(["value"] * 6 + ["field", "gone", "twice", "wrapped"]))
    if way == "field":
        return {**document, draw(st.sampled_from(FIELDS) | texts): draw(odd)}
    if way == "twice":
        name = draw(st.sampled_from([*document]))
        return Pairs((*document.items(), (name, draw(odd))))
    found = places(document)
    # A model that isn't there is all that an answer speaks of.
    place = draw(st.sampled_from([place for place in found if place != ("model",)] or found))
    if way == "gone":
        return replaced(document, place, None)
    if way == "wrapped":
        return replaced(document, place, [Raw(written(at(document, place)))])
    return replaced(document, place, draw(like(at(document, place))))


def places(node: Any) -> list[Path]:
    """Every place in a document but the whole."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path for key, value in items for path in [(key,), *((key, *rest) for rest in places(value))]]


def at(node: Any, place: Path) -> Any:
    return at(node[place[0]], place[1:]) if place else node


def replaced(node: Any, place: Path, value: Any) -> Any:
    """The document with another value there."""
    if not place:
        return value
    copy = list(node) if isinstance(node, list) else dict(node)
    copy[place[0]] = replaced(node[place[0]], place[1:], value)
    return copy


@st.composite
def spoilt(draw: DrawFn, data: bytes) -> bytes:
    """Bytes that are broken in one place, or in another encoding."""
    where = draw(st.integers(0, len(data)))
    match draw(st.sampled_from(["cut", "insert", "byte", "prefix", "suffix", "utf-16", "junk", "other"])):
        case "cut":
            return data[:where]
        case "insert":
            return data[:where] + draw(st.binary(min_size=1, max_size=6)) + data[where:]
        case "byte":
            return data[:where] + draw(st.binary(min_size=1, max_size=1)) + data[where + 1 :]
        case "prefix":
            return draw(st.sampled_from([b"\xef\xbb\xbf", b"\x00", b" " * 9, b"data: ", b"\xff\xfe"])) + data
        case "suffix":
            return data + draw(st.sampled_from([b"\x00", b"}", b"{}", b"\n\n", b",", data]))
        case "utf-16":
            return data.decode("utf-8", "replace").encode(
                draw(st.sampled_from(["utf-16", "utf-32", "utf-7", "cp037"])), "replace"
            )
        case "junk":
            return draw(st.binary(max_size=60))
        case _:
            return draw(st.sampled_from(WHOLE))


WHOLE = [
    *(
        b"",
        b"null",
        b"[]",
        b"{}",
        b"0",
        b'""',
        b"model=m&prompt=x",
        b"--x\r\ncontent-disposition: form-data\r\n\r\n--x--",
    ),
    *(
        b"\x1f\x8b\x08\x00" + b"\x00" * 20,
        b"<x/>",
        b'{"model":"m"}',
        b'{"model":"m","model":"own"}',
        b'{"mod\\u0065l":"m"}',
    ),
    nested(100_000).data,
    nested(100_000, b"[", b"", b"").data,
    nested(50_000, b'{"model":', b'"m"', b"}").data,
    b'{"model":"m","prompt":"' + MARKER.encode() * 20_000 + b'"}',
    b'{"model":"m","prompt":[' + b"1," * 50_000 + b"1]}",
    b'{"model":"m","messages":[' + b"{}," * 20_000 + b"{}]}",
]


def pieces(data: bytes) -> SearchStrategy[tuple[bytes, ...]]:
    """A body as it comes: whole, or cut."""
    cut = st.lists(st.integers(0, len(data)), min_size=1, max_size=3).map(
        lambda places: tuple(
            data[start:end] for start, end in zip([0, *sorted(places)], [*sorted(places), None], strict=True)
        )
    )
    return st.one_of(st.just((data,)), st.just((data,)), cut)

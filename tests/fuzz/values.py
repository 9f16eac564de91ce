"""JSON with what no library writes: literals as they are, bytes that aren't UTF-8, keys twice, nesting without end."""

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.fuzz.inputs import MARKER


@dataclass(frozen=True, slots=True)
class Raw:
    """A value that is written as these bytes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Pairs:
    """An object whose keys may come twice."""

    pairs: tuple[tuple[Any, Any], ...]


def written(value: Any) -> bytes:
    """A document as JSON, or nearly."""
    match value:
        case Raw(data):
            return data
        case Pairs(pairs):
            return b"{%b}" % b",".join(b"%b:%b" % (written(key), written(item)) for key, item in pairs)
        case dict():
            return written(Pairs(tuple(value.items())))
        case list():
            return b"[%b]" % b",".join(map(written, value))
        case _:
            return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def nested(depth: int, opening: bytes = b"[", inside: bytes = b"", closing: bytes = b"]") -> Raw:
    return Raw(opening * depth + inside + closing * depth)


NUMBERS = [b"1e400", b"-1e400", b"1e-400", b"NaN", b"Infinity", b"-Infinity", b"-0", b"0.1e1", b"01", b"1.", b"+1", b"0x1"]
HUGE = [str(2**63), str(2**64), str(-(2**63) - 1), "9" * 400, "9" * 4300, "9" * 5001, "0." + "3" * 5000, "1" + "0" * 4299]
STRINGS = [rb'"\ud800"', rb'"\udfff\ud800"', b'"\xff\xfe"', b'"\xed\xa0\x80"', b'"\x00"', rb'"\u0000"', b'"\xf0\x9f"', b"'x'"]
BROKEN = [b"", b"tru", b"nul", b'"', b"[", b"{", b"]", b"{]", b"[1,]", b"{,}", b"//", b"undefined", b"\xef\xbb\xbf1"]

raw: SearchStrategy[Any] = st.sampled_from([*NUMBERS, *(each.encode() for each in HUGE), *STRINGS, *BROKEN]).map(Raw)
deep: SearchStrategy[Any] = st.one_of(
    st.integers(1, 260).map(nested),
    st.integers(1, 260).map(lambda depth: nested(depth, b'{"content":', b"1", b"}")),
    st.integers(1, 90).map(lambda depth: nested(depth, b'[{"text":', b'"x"', b"}]")),
    st.integers(1, 190).map(lambda depth: nested(depth, b'{"allOf":[', b"{}", b"]}")),
    st.sampled_from([10_000, 100_000]).map(nested),
    st.sampled_from([10_000, 100_000]).map(lambda depth: nested(depth, b'{"a":', b"1", b"")),
)
texts: SearchStrategy[str] = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["", " ", "\x00", "\r\nx: y", "\u2028", "\ufeff", "a\u0301", "\U0001f600", MARKER, "<|end|>", "%s{}"]),
    st.integers(1, 40).map(lambda many: MARKER * many),
    st.sampled_from([MARKER + "word " * 3000, "\U0001f600" * 9000, "\u0000" * 5000]),
)
scalars: SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.integers(),
    st.floats(),
    texts,
)
odd: SearchStrategy[Any] = st.one_of(
    scalars,
    raw,
    deep,
    st.lists(scalars, max_size=4),
    st.dictionaries(texts, scalars, max_size=3),
    st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
    ),
    st.integers(0, 3000).map(lambda many: [0] * many),
)

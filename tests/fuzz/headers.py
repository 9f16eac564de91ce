"""Headers: those that the ingress reads with odd values, and those that nobody reads."""

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.fuzz.house import SECRETS
from tests.fuzz.inputs import MARKER, Header

Headers = tuple[Header, ...]

_BYTES = [
    *(
        b"",
        b" ",
        b"\xff\xfe",
        "\u00e9\u20ac".encode(),
        b"\xed\xa0\x80",
        MARKER.encode(),
        b"\t",
        b"x" * 3000,
        b"\x7f\x01",
    ),
    *(b"-1", b"1e400", b"NaN", b"9" * 5000, b"../..", b"a, b", b"?1", b"%00", b"{}", b"\x80" * 50),
]
# An HTTP server lets no line end and no NUL into a value.
values: SearchStrategy[bytes] = st.one_of(
    st.sampled_from(_BYTES),
    st.binary(max_size=20).map(lambda data: data.translate(None, b"\r\n\0")),
)
CONTENT_TYPES = [
    *(b"application/json", b"application/json; charset=utf-16", b"text/plain", b"multipart/form-data; boundary=x"),
    *(b"application/x-www-form-urlencoded", b"application/xml", b"", b"\xff", b"application/json;;;", b"image/png"),
]
_NAMES = [
    *(b"x-request-type", b"x-request-id", b"x-conversation-id", b"authorization", b"x-api-key", b"host", b"accept"),
    *(b"content-length", b"content-encoding", b"transfer-encoding", b"expect", b"cookie", b"origin", b"range", b"te"),
    *(
        b"x-forwarded-for",
        b"x-forwarded-proto",
        b"upgrade",
        b"connection",
        b"traceparent",
        b"access-control-request-method",
    ),
    *(b"x-request-disconnect-disabled", b"x-request-timeout-seconds", b"serve_multiplexed_model_id", b"x", b"!#$%&'*+"),
]
_TYPES = [b"chat", b"batch", b"offline", b"embedding", b"multi_turn", b"CHAT", b"nothing"]
_HOSTS = [
    b"x",
    b"[",
    b"[::1",
    b"[::1]:8",
    b"a:b",
    b"a@b",
    b"/",
    b"?",
    b"#",
    b"\xff",
    b"x" * 300,
    b"",
    b"a b",
    b"[x]:99999",
]
_KEYS = [f"Bearer {secret}".encode() for secret in SECRETS.values()]
_SHOWN = [
    *(b"Bearer", b"Bearer ", b"bearer  x", b"Basic eHg6eHg=", b"Bearer eh-" + b"x" * 9000, b"Bearer \xff\xfe", b"eh-x"),
    b"Bearer eh-" + MARKER.encode(),
]

one: SearchStrategy[Header] = st.one_of(
    st.tuples(st.sampled_from(_NAMES), values),
    st.tuples(st.just(b"content-type"), st.sampled_from(CONTENT_TYPES)),
    st.tuples(st.just(b"x-request-type"), st.sampled_from(_TYPES)),
    st.tuples(st.just(b"host"), st.sampled_from(_HOSTS)),
    st.tuples(st.just(b"authorization"), st.sampled_from(_SHOWN)),
)
flood: SearchStrategy[Headers] = st.one_of(
    st.integers(1, 400).map(lambda many: tuple((b"x-%d" % at, b"y" * 20) for at in range(many))),
    st.integers(1, 80).map(lambda kilobytes: ((b"x-large", b"y" * 1024 * kilobytes),)),
    st.integers(1, 300).map(lambda many: ((b"x-request-type", b"chat"),) * many),
)
usual: Headers = ((b"host", b"127.0.0.1:8000"), (b"content-type", b"application/json"))
headers: SearchStrategy[Headers] = st.one_of(
    st.just(usual),
    st.lists(one, max_size=2).map(lambda more: (*usual, *more)),
    st.lists(one, max_size=6).map(tuple),
    flood.map(lambda many: (*usual, *many)),
)
# For the door that asks for a key, which most requests have to come through.
known: SearchStrategy[Headers] = st.sampled_from(_KEYS).map(lambda key: ((b"authorization", key),))

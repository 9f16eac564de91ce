"""One request as it comes over the wire, and as a line of text by which it can be sent again."""

import json
import zlib
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Literal

Header = tuple[bytes, bytes]
DoorName = Literal["open", "locked"]
# When the client closes its connection: not before its answer, before the end of its request, or right after that.
Leaves = Literal["never", "early", "late"]
# In texts, keys and headers of inputs: what never may be found in a log.
MARKER = "zq-secret-qz"


@dataclass(frozen=True, slots=True)
class Input:
    """A request of whatever kind. Its header names are in lower case, as ASGI has them."""

    method: str
    target: str  # path and query, percent-encoded
    headers: tuple[Header, ...] = ()
    body: tuple[bytes, ...] = (b"",)  # as it comes, in pieces
    leaves: Leaves = "never"
    door: DoorName = "open"  # or the one that asks for keys

    def token(self) -> str:
        """A line for `python -m tests.fuzz --replay`."""
        document = {
            "method": self.method,
            "target": self.target,
            "headers": [[_text(name), _text(value)] for name, value in self.headers],
            "body": [_text(piece) for piece in self.body],
            "leaves": self.leaves,
            "door": self.door,
        }
        return b64encode(zlib.compress(json.dumps(document).encode(), 9)).decode()

    def __str__(self) -> str:
        shown = b"".join(self.body)
        rest = f"... ({len(shown)} bytes)" if len(shown) > 300 else ""
        return f"{self.method} {self.target[:300]} {[*self.headers][:20]} {shown[:300]!r}{rest}\n{self.token()}"


def from_token(token: str) -> Input:
    document = json.loads(zlib.decompress(b64decode(token)))
    headers = tuple((_bytes(name), _bytes(value)) for name, value in document["headers"])
    body = tuple(map(_bytes, document["body"]))
    return Input(document["method"], document["target"], headers, body, document["leaves"], document["door"])


def _text(data: bytes) -> str:
    return data.decode("latin-1")


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")

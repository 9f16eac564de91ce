"""Frames on a connection between a replica and an ingress. Pure functions, and a decoder.

A frame: length of the payload (4 bytes, big-endian), kind (1 byte), ticket of the stream (16 bytes), payload.
"""

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct

HEADER = Struct("!IB16s")
TICKET_SIZE = 16
MAX_PAYLOAD = 2**20  # bytes; longer chunks are cut
WINDOW = 2**18  # bytes that a stream may have on the way, before its reader has taken some
_CREDIT = Struct("!I")


class Kind(IntEnum):
    """What a frame is. The first four go to the ingress, the others to the replica."""

    HEAD = 1  # status, media type and headers, as JSON
    DATA = 2
    END = 3
    BROKEN = 4  # the engine failed after the stream's first byte
    CREDIT = 5  # the reader has taken so many bytes
    CLOSE = 6  # nobody reads any more


_KINDS = {int(kind): kind for kind in Kind}


class FrameError(Exception):
    """What came is no frame."""


def frame(kind: Kind, ticket: bytes, payload: bytes = b"") -> bytes:
    return HEADER.pack(len(payload), kind, ticket) + payload


def credit(ticket: bytes, size: int) -> bytes:
    return frame(Kind.CREDIT, ticket, _CREDIT.pack(size))


def credit_of(payload: bytes) -> int:
    """
    Raises:
        FrameError: it is none.
    """
    if len(payload) != _CREDIT.size:
        raise FrameError("a credit of the wrong length")
    size: int = _CREDIT.unpack(payload)[0]
    return size


class Decoder:
    """Frames from the pieces in which a connection gives them."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[tuple[Kind, bytes, bytes]]:
        """Kind, ticket and payload of each frame that `data` completes.

        Raises:
            FrameError: a payload is too long, or of no kind.
        """
        if self._rest:
            data = self._rest + data
        at, end, size = 0, len(data), HEADER.size
        while end - at >= size:
            length, number, ticket = HEADER.unpack_from(data, at)
            kind = _KINDS.get(number)
            if kind is None or length > MAX_PAYLOAD:
                raise FrameError(f"a frame of kind {number} and {length} bytes")
            if end - at - size < length:
                break
            at += size + length
            yield kind, ticket, data[at - length : at]
        self._rest = data[at:]

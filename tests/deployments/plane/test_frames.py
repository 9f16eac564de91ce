import pytest

from deployments.plane import greeting
from deployments.plane.frames import HEADER, MAX_PAYLOAD, Decoder, FrameError, Kind, credit, credit_of, frame

TICKET = bytes(range(16))
SENT = [(Kind.HEAD, TICKET, b'{"status": 200}'), (Kind.DATA, TICKET, "é€😀".encode()), (Kind.END, TICKET[::-1], b"")]


@pytest.mark.parametrize("size", [1, 2, 7, 21, 22, 1000])
def test_frames_come_out_as_they_went_in_however_they_are_cut(size: int) -> None:
    data = b"".join(frame(*sent) for sent in SENT)
    decoder = Decoder()
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert [found for piece in pieces for found in decoder.feed(piece)] == SENT


@pytest.mark.parametrize("header", [(MAX_PAYLOAD + 1, Kind.DATA), (2**32 - 1, Kind.DATA), (0, 0), (0, 99)])
def test_what_is_no_frame_is_refused_at_its_header(header: tuple[int, int]) -> None:
    with pytest.raises(FrameError, match=rf"^a frame of kind {header[1]:d} and {header[0]} bytes$"):
        list(Decoder().feed(HEADER.pack(*header, TICKET)))


def test_a_credit() -> None:
    [(kind, ticket, payload)] = Decoder().feed(credit(TICKET, 123_456))
    assert (kind, ticket, credit_of(payload)) == (Kind.CREDIT, TICKET, 123_456)
    with pytest.raises(FrameError):
        credit_of(payload + b"\0")


def test_a_proof_is_of_one_key_one_pair_of_nonces_and_one_end() -> None:
    key, theirs, ours = b"k" * 32, greeting.nonce(), greeting.nonce()
    answered = greeting.answer(key, theirs, ours)
    assert len(answered) == greeting.ANSWER_SIZE
    assert greeting.is_answer(key, theirs, answered)
    assert not greeting.is_answer(b"x" * 32, theirs, answered)
    assert not greeting.is_answer(key, greeting.nonce(), answered)
    assert not greeting.is_answer(key, theirs, ours + bytes(greeting.PROOF_SIZE))
    confirmed = greeting.confirmation(key, theirs, answered)
    assert greeting.is_confirmation(key, theirs, ours, confirmed)
    assert not greeting.is_confirmation(b"x" * 32, theirs, ours, confirmed)
    assert not greeting.is_confirmation(key, theirs, greeting.nonce(), confirmed)
    assert not greeting.is_confirmation(key, theirs, ours, answered[greeting.NONCE_SIZE :])

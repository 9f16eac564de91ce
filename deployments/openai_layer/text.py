"""From token ids to text that may be sent: whole characters only, and nothing of a stop string."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol


class Tokenizer(Protocol):
    """What this layer needs of a Hugging Face tokenizer."""

    def apply_chat_template(self, conversation: list[dict[str, str]], **kwargs: Any) -> Any: ...

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str: ...

    def convert_ids_to_tokens(self, ids: int) -> str: ...

    def get_vocab(self) -> dict[str, int]: ...

    def __len__(self) -> int: ...

    @property
    def backend_tokenizer(self) -> Any: ...


class Detokenizer:
    """Text of a growing token sequence; holds back the bytes of an unfinished character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        from tokenizers.decoders import DecodeStream

        self._backend = tokenizer.backend_tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def feed(self, token_id: int) -> str:
        """The text that `token_id` completes, possibly none."""
        return self._stream.step(self._backend, token_id) or ""


class StopFilter:
    """Passes text on until a stop string appears; holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """What may be sent after `text` came in. Sets `stopped` once a stop string is complete."""
        if not self._stops:
            return text
        self._held += text
        if found := [(at + len(stop), at) for stop in self._stops if (at := self._held.find(stop)) >= 0]:
            self.stopped = True
            # The one that was complete first, so that nothing depends on how the text was cut into pieces.
            self._held = self._held[: min(found)[1]]
            return self.flush()
        keep = self._possible_stop()
        sendable, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return sendable

    def flush(self) -> str:
        """What was held back, once no more text can come."""
        text, self._held = self._held, ""
        return text

    def _possible_stop(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = min(len(self._held), max(len(stop) for stop in self._stops) - 1)
        return next(
            (size for size in range(longest, 0, -1) if any(s.startswith(self._held[-size:]) for s in self._stops)), 0
        )


def token_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """The bytes that a token stands for, also where they are a part of a character."""
    text = tokenizer.decode([token_id])
    if "\ufffd" not in text:
        return text.encode()
    mapping = _byte_level_alphabet()
    token = tokenizer.convert_ids_to_tokens(token_id)
    if token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:-1], 16)])
    if all(char in mapping for char in token):
        return bytes(mapping[char] for char in token)
    return text.encode()


@cache
def _byte_level_alphabet() -> dict[str, int]:
    """The characters that byte-level BPE writes bytes as (GPT-2's byte encoder, inverted)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(rest)}

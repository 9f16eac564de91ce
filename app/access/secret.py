"""The secret of a key: how one is made, and what is kept of it.

That is its SHA-256, without salt or repetitions. Those make guessing slow, for what can be guessed: passwords. A secret
here is 256 random bits, which nobody guesses, and a hash that is fast costs a request nothing.
"""

import hashlib
import re
import secrets

PREFIX = "eh-"  # by which people, and programs that look for leaked secrets, know it
_SECRET = re.compile(PREFIX + r"[A-Za-z0-9_-]{8,}")


def new_secret() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def digest(secret: bytes) -> bytes:
    """What is kept of a secret: 32 bytes."""
    return hashlib.sha256(secret).digest()


def without_secrets(text: str) -> str:
    """A text that may quote a file in which somebody wrote a secret."""
    return _SECRET.sub(f"{PREFIX}...", text)

"""How both ends of a connection prove that they know the ingress's key, which only Ray's calls carry.

The ingress sends a nonce; the replica answers with one of its own and a proof over both; the ingress sends its proof.
Proofs are HMAC-SHA256. What follows isn't enciphered: neither is what Ray sends between nodes.
"""

import hmac
import secrets

NONCE_SIZE = 16
PROOF_SIZE = 32
ANSWER_SIZE = NONCE_SIZE + PROOF_SIZE


def nonce() -> bytes:
    return secrets.token_bytes(NONCE_SIZE)


def answer(key: bytes, theirs: bytes, ours: bytes) -> bytes:
    """The replica's: its nonce, and its proof."""
    return ours + _proof(key, b"replica", theirs + ours)


def is_answer(key: bytes, ours: bytes, answered: bytes) -> bool:
    """Whether the replica knows the key; `ours` is the ingress's nonce."""
    theirs, proof = answered[:NONCE_SIZE], answered[NONCE_SIZE:]
    return hmac.compare_digest(proof, _proof(key, b"replica", ours + theirs))


def confirmation(key: bytes, ours: bytes, answered: bytes) -> bytes:
    """The ingress's proof; `ours` is its nonce."""
    return _proof(key, b"ingress", ours + answered[:NONCE_SIZE])


def is_confirmation(key: bytes, theirs: bytes, ours: bytes, confirmed: bytes) -> bool:
    """Whether the ingress knows the key; `ours` is the replica's nonce."""
    return hmac.compare_digest(confirmed, _proof(key, b"ingress", theirs + ours))


def _proof(key: bytes, role: bytes, nonces: bytes) -> bytes:
    return hmac.digest(key, role + nonces, "sha256")

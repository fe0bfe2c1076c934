"""Proofs that a sender knows a secret which is not sent: each purpose has a key of its own, derived from the secret."""

import hashlib
import hmac


def purpose_key(secret: str, purpose: bytes) -> bytes:
    """Return the key of a purpose."""
    return hmac.digest(secret.encode(), purpose, "sha256")


def proof(secret: str, purpose: bytes, *covered: str) -> str:
    """Return a code over these texts, none of which has a line end in it, in hexadecimal."""
    return hmac.new(purpose_key(secret, purpose), "\n".join(covered).encode(), hashlib.sha256).hexdigest()


def is_proof(code: str, secret: str, purpose: bytes, *covered: str) -> bool:
    """Return whether a code is the proof over these texts; never with an empty secret."""
    return bool(secret) and hmac.compare_digest(code.encode(), proof(secret, purpose, *covered).encode())

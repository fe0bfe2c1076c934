"""Proofs that a sender knows a secret that is not sent: each purpose has its own key, derived from the secret."""

import hashlib
import hmac


def purpose_key(secret: str, purpose: bytes) -> bytes:
    """Return the key of a purpose."""
    return hmac.digest(secret.encode(), purpose, "sha256")


def proof(secret: str, purpose: bytes, *covered: str) -> str:
    """Return a code over these texts, which must not contain a line end, in hexadecimal."""
    return hmac.new(purpose_key(secret, purpose), "\n".join(covered).encode(), hashlib.sha256).hexdigest()


def is_proof(code: str, secret: str, purpose: bytes, *covered: str) -> bool:
    """Return whether a code is the proof over these texts; false with an empty secret."""
    return bool(secret) and hmac.compare_digest(code.encode(), proof(secret, purpose, *covered).encode())

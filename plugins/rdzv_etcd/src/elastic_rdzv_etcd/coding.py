"""Encoding of keys and values in the gateway's JSON."""

from binascii import a2b_base64, b2a_base64

EVERYTHING = b"\0"
"""As the end of a range: no end. As its start: the first key."""


def b64(raw: bytes) -> str:
    """Return bytes in the gateway's encoding."""
    return b2a_base64(raw, newline=False).decode()


def unb64(text: str) -> bytes:
    """Return the bytes of a text from the gateway."""
    return a2b_base64(text)


def prefix_end(prefix: bytes) -> bytes:
    """Return the end of the range of all keys with a prefix."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else EVERYTHING

"""How keys and values travel in the gateway's JSON."""

from base64 import b64decode, b64encode

EVERYTHING = b"\0"
"""As the end of a range: there is none. As its begin: the first key."""


def b64(raw: bytes) -> str:
    """Return bytes as the gateway wants them."""
    return b64encode(raw).decode()


def unb64(text: str) -> bytes:
    """Return the bytes that the gateway sent."""
    return b64decode(text)


def prefix_end(prefix: bytes) -> bytes:
    """Return the end of the range of all keys with a prefix."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else EVERYTHING

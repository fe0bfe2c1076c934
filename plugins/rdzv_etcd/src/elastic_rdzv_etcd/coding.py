"""How keys and values travel in the gateway's JSON."""

from binascii import a2b_base64, b2a_base64

EVERYTHING = b"\0"
"""As the end of a range: there is none. As its begin: the first key."""


def b64(raw: bytes) -> str:
    """Return bytes as the gateway wants them."""
    return b2a_base64(raw, newline=False).decode()


def unb64(text: str) -> bytes:
    """Return the bytes that the gateway sent."""
    return a2b_base64(text)


def prefix_end(prefix: bytes) -> bytes:
    """Return the end of the range of all keys with a prefix."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else EVERYTHING

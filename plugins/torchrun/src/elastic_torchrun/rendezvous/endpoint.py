"""Endpoints as torch's handlers parse them; elastic-core's `endpoint` accepts more forms."""

import re

_HOST = re.compile(r"[\w.:-]+")
_BRACKETED = re.compile(r"\[(?P<host>[^\[\]]*)\](?::(?P<port>.*))?")
_PORTS = 2**16


def parse_rendezvous_endpoint(endpoint: str | None, default_port: int) -> tuple[str, int]:
    """Return host and port of `HOST[:PORT]`, `[IPV6][:PORT]`. An empty text means localhost.

    Args:
        endpoint: As typed.
        default_port: The port if none is given.

    Raises:
        ValueError: host or port is invalid.
    """
    text = (endpoint or "").strip()
    if not text:
        return "localhost", default_port
    bracketed = _BRACKETED.fullmatch(text)
    if bracketed:
        host, port = bracketed["host"], bracketed["port"]
    else:
        host, colon, after = text.rpartition(":")
        host, port = (host, after) if colon else (text, None)
    if not _HOST.fullmatch(host):
        raise ValueError(f"rendezvous endpoint: {text!r}; expected a host name or an IP address before the port")
    if port is None:
        return host, default_port
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) >= _PORTS:
        raise ValueError(f"rendezvous endpoint: {text!r}; expected a port from 0 to {_PORTS - 1}, got {port!r}")
    return host, int(port)

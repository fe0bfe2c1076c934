"""Translation of failed requests to the core's errors.

An error response of the server usually means that nothing was written. Without a response, the outcome depends on how
far the request was sent.
"""

import errno
import ssl
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

import msgspec

from elastic_core.api.stores import BackendError, BackendRefusedError, BackendUnavailableError, OutcomeUnknownError
from elastic_rdzv_etcd.errors import CompactedError, LeaseGoneError
from elastic_rdzv_etcd.tls import tls_failure
from elastic_rdzv_etcd.url import Login

PREFIX: Final = "/elastic/"
_SHOWN: Final = 160
_LOGIN_HINT: Final = (
    "https://USER:PASSWORD@HOST:PORT, ELASTIC_ETCD_USERNAME and ELASTIC_ETCD_PASSWORD in the environment, or "
    "--rdzv-conf username=USER,password_file=PATH"
)
_PORT_HINT: Final = "the client port of an etcd server (mostly 2379); https:// if it speaks TLS"
_GATEWAY_HINT: Final = "enable-grpc-gateway: true in the server's configuration; etcd 3.4 or later"
_CN_HINT: Final = "a client certificate without a CommonName, beside user and password"


class WrongServerError(BackendRefusedError):
    """The server is not a usable etcd; another member may be."""


class NotPermittedError(BackendRefusedError):
    """etcd knows the user, who lacks the permission."""


class Said(Enum):
    """An action that an error response needs, in addition to an error."""

    TOKEN = "a new token, and the same request again"


_VOTERS_HINT: Final = "the endpoints of members that vote (etcdctl member list)"
_HEALTH_HINT: Final = "etcdctl endpoint health --cluster, and start the members that are missing"
_UNTOUCHED: Final = {
    "no leader": ("has no leader", _HEALTH_HINT),
    "too many requests": ("has more requests than it takes", ""),
    "database space exceeded": (
        "is out of space (alarm NOSPACE), and takes no writes",
        "etcdctl compact REVISION, defrag and alarm disarm, or a larger --quota-backend-bytes",
    ),
    "corrupt cluster": (
        "has found that its data are corrupt (alarm CORRUPT)",
        "replace the member that is corrupt (etcdctl alarm list), then etcdctl alarm disarm",
    ),
    "not capable": ("is too old, or is still finding out what its cluster can do", ""),
    "too many learner": ("is a learner, which serves no clients", _VOTERS_HINT),
    "rpc not supported for learner": ("is a learner, which serves no clients", _VOTERS_HINT),
    "unhealthy cluster": ("is part of a cluster that is not healthy", _HEALTH_HINT),
}
"""etcd's errors before any effect, and their remedies."""
_OPEN: Final = {
    "request timed out": "did not finish in time",
    "leader changed": "has got another leader meanwhile",
    "server stopped": "is stopping",
    "timeout": "did not finish in time",
}
"""etcd's errors after which a write may still take effect."""
_STALE_TOKEN: Final = ("invalid auth token", "revision of auth store is old")


def answered(status: int, text: str, *, peer: str, login: Login, writes: bool, path: str) -> BackendError | Said:
    """Return the meaning of an error response.

    Args:
        status: Of the HTTP response.
        text: Its body.
        peer: Name of the server, for the text.
        login: The login, of which the text must not contain the password.
        writes: Whether the request writes.
        path: The request's path, `kv/txn`.
    """
    code, said = _parsed(text)
    shown = " ".join(login.hidden_in(said).split())[:_SHOWN]
    if code is None:
        return _not_json(status, shown, peer, writes)
    if code == 16 or any(words in said for words in _STALE_TOKEN):
        return Said.TOKEN
    if "lease not found" in said:
        return LeaseGoneError(f"{peer} has no such lease any more")
    if "has been compacted" in said:
        return CompactedError(f"{peer} has forgotten the revisions that were asked for")
    refusal = _refusal(code, said, shown, peer, login, path)
    if refusal is not None:
        return refusal
    for words, (what, hint) in _UNTOUCHED.items():
        if words in said:
            return BackendUnavailableError(f"{peer} {what}", hint=hint)
    for words, what in _OPEN.items():
        if words in said:
            return _maybe(f"{peer} {what}", writes)
    if code in (1, 2, 4, 10, 13, 14, 15):  # cancelled, unknown, deadline, aborted, internal, unavailable, data loss
        return _maybe(f"{peer} answered: {shown}", writes)
    return BackendRefusedError(f"{peer} answered: {shown}", hint="etcd 3.4 or later")


def nobody(peer: str) -> BackendRefusedError:
    """Return the error for a server that requires a user, if none is given."""
    return BackendRefusedError(f"{peer} requires a user and a password, and none was given", hint=_LOGIN_HINT)


def _parsed(text: str) -> tuple[int | None, str]:
    """Return etcd's code and message. `None` for the code if it is not etcd's JSON."""
    try:
        body: Any = msgspec.json.decode(text.partition("\n")[0])
    except (msgspec.DecodeError, RecursionError):
        return None, text
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict):  # of a stream
        body = error
    if not isinstance(body, dict):
        return None, text
    code = body.get("code", body.get("grpc_code"))
    message = body.get("message") or body.get("error")
    return (code, message) if isinstance(code, int) and isinstance(message, str) else (None, text)


def _maybe(what: str, writes: bool) -> BackendError:
    return OutcomeUnknownError(what) if writes else BackendUnavailableError(what)


def _refusal(code: int, said: str, shown: str, peer: str, login: Login, path: str) -> BackendError | None:
    """Return the error for a response about users and permissions. `None` for other responses."""
    given = f"user {login.username!r}"
    if "authentication is not enabled" in said:
        return BackendRefusedError(
            f"{peer} has authentication switched off, and {given} was given", hint="an endpoint without a user"
        )
    if "user name is empty" in said:
        return nobody(peer)
    if "authentication failed" in said or "user name not found" in said or "password" in said:
        return BackendRefusedError(f"{peer} refused the password of {given}", hint=_LOGIN_HINT)
    if code == 7 or "permission denied" in said:
        who = given if login.username else "this user"
        return NotPermittedError(
            f"{peer} does not permit {who} what a rendezvous needs ({path})",
            hint=f"etcdctl role grant-permission ROLE --prefix=true readwrite {PREFIX}, or as --rdzv-conf prefix says",
        )
    if "too large" in said:
        return BackendRefusedError(f"{peer} takes no request of that size", hint="--max-request-bytes of the server")
    return None


def _not_json(status: int, shown: str, peer: str, writes: bool) -> BackendError:
    """Return the error for a response that is not etcd's JSON."""
    if "CommonName" in shown:
        return WrongServerError(
            f"{peer} rejects clients whose certificate has a CommonName: its JSON gateway can't, while etcd "
            "checks users and certificates",
            hint=_CN_HINT,
        )
    if "HTTP request to an HTTPS server" in shown:
        return WrongServerError(f"{peer} speaks TLS only", hint="https:// in the endpoint")
    if status == 404:
        return WrongServerError(f"{peer} has no JSON gateway at /v3, or is not etcd", hint=_GATEWAY_HINT)
    if status in (502, 503, 504, 429):
        return _maybe(f"{peer} answered with HTTP status {status}", writes)
    return WrongServerError(f"{peer} does not answer as etcd does (HTTP status {status})", hint=_PORT_HINT)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def lost(error: Exception, *, peer: str, sent: bool, writes: bool, first: bool) -> BackendError:
    """Return the error for a request without a complete response.

    Args:
        error: The error of the socket, TLS, http.client or urllib3.
        peer: Name of the server, for the text.
        sent: Whether the whole request may have reached the server.
        writes: Whether it writes.
        first: Whether the server has sent nothing yet on this connection.
    """
    for cause in _chain(error):
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return tls_failure(cause, peer)
    late = any(isinstance(cause, TimeoutError) for cause in _chain(error))
    unknown = sent and writes
    if any(isinstance(cause, OSError) and cause.errno == errno.EMSGSIZE for cause in _chain(error)):
        return _maybe(f"{peer} answers with more than is read", unknown)
    if late:
        return _maybe(f"no answer from {peer} in time", unknown)
    if type(error).__name__ in ("BadStatusLine", "LineTooLong", "UnknownProtocol"):
        return WrongServerError(f"{peer} does not speak HTTP", hint=_PORT_HINT)
    if first and not unknown:
        return BackendUnavailableError(f"{peer} closed the connection before it answered", hint=_PORT_HINT)
    return _maybe(f"the connection to {peer} was lost" + (" before the answer" if unknown else ""), unknown)

"""Translation of a connection's errors to the core's errors.

A reply of the server means that nothing was written. Without a reply, the outcome depends on how far the command was
sent.
"""

import re
from typing import Final

from elastic_core.api.stores import BackendError, BackendRefusedError, BackendUnavailableError, OutcomeUnknownError
from elastic_rdzv_redis.protocol import ErrorReply, LoginError, NoScriptError, NotRedisError
from elastic_rdzv_redis.tls import failure_in_tls
from elastic_rdzv_redis.url import Login

_SHOWN: Final = 160
_NEEDS: Final = "ACL rules ~elastic:* &elastic:* +@all -@dangerous -@admin, or see the README of elastic-rdzv-redis"
_LOGIN_HINT: Final = (
    "redis://USER:PASSWORD@HOST:PORT, ELASTIC_REDIS_USERNAME and ELASTIC_REDIS_PASSWORD in the environment, or "
    "--rdzv-conf username=USER,password_file=PATH"
)

_FIRST_HINT: Final = (
    "the port of a Redis or Valkey server; rediss:// if it speaks TLS; --rdzv-conf cert=PATH,key=PATH if it wants "
    "certificates of clients"
)

_PRIMARY: Final = "the endpoint of the primary, or of a Sentinel with --rdzv-conf sentinel_master=NAME"
_FOR_NOW: Final = {
    "BUSY": ("is busy with a script", ""),
    "UNKILLABLE": ("is busy with a script", ""),
    "READONLY": ("is a replica, which takes no writes", _PRIMARY),
    "MASTERDOWN": ("is a replica that has lost its master", _PRIMARY),
    "OOM": ("is out of memory", "raise maxmemory of the server, or free memory there"),
    "MISCONF": ("can't save its data, and takes no writes", "look at the server's log, and free space on its disk"),
    "NOREPLICAS": ("has too few replicas, and takes no writes", "start replicas, or lower min-replicas-to-write"),
    "LOADING": ("is loading its data", "wait until it has, or raise --connect-timeout"),
    "CLUSTERDOWN": ("says that its cluster is down", "redis-cli --cluster check HOST:PORT"),
    "TRYAGAIN": ("is moving the run's keys to another node", ""),
}
"""The behaviour of a server that rejects requests temporarily, and the remedy, by the code of its reply."""
# Redis 6.2 wraps what fails within a script: `ERR Error running script (call to …): @user_script:12: -READONLY …`.
_CODE: Final = re.compile(r"(?:^|: -)([A-Z]{3,})\b")
_PERMISSION: Final = re.compile(r"\bNOPERM\b|no permissions|can't run this command|ACL failure", re.IGNORECASE)

_FOREIGN: Final = re.compile(
    r"\b(FOREIGN|WRONGTYPE)\b|not an integer|not a valid float|would overflow|invalid expire|max is not a float"
    r"|attempt to (perform arithmetic|compare|index|concatenate)"
)


class ForeignContentError(BackendRefusedError):
    """A script found content in the run's keys that elastic-core has not written."""


def translated(
    error: Exception, *, peer: str, login: Login, sent: bool, writes: bool, first: bool = False
) -> BackendError:
    """Return the core's error for a failed command.

    Args:
        error: The server's reply, or the error of the protocol, the socket or TLS.
        peer: Name of the server, for the text.
        login: The login, of which the text must not contain the password.
        sent: Whether the whole command may have reached the server.
        writes: Whether it writes.
        first: Whether the server has sent nothing yet on this connection.
    """
    of_tls = failure_in_tls(error, peer)
    if of_tls is not None:
        return of_tls
    if isinstance(error, NotRedisError):
        return BackendRefusedError(
            f"{peer} does not speak the protocol of Redis",
            hint="the port of a Redis or Valkey server; rediss:// if it speaks TLS",
        )
    if isinstance(error, ErrorReply):
        return _reply(error, peer, login)
    late = isinstance(error, TimeoutError)
    if first and not late:
        return BackendUnavailableError(f"{peer} closed the connection before it answered", hint=_FIRST_HINT)
    return _lost(peer, late=late, unknown=sent and writes)


def _reply(error: ErrorReply, peer: str, login: Login) -> BackendError:
    """Return the core's error for an error reply of the server."""
    text = " ".join(login.hidden_in(str(error)).split())
    shown = text[:_SHOWN]
    for code in _CODE.findall(text):
        if code in _FOR_NOW:
            what, hint = _FOR_NOW[code]
            return BackendUnavailableError(f"{peer} {what}", hint=hint)
    if "max number of clients" in text:
        hint = "raise maxclients of the server, or end some of its clients"
        return BackendUnavailableError(f"{peer} has as many clients as it takes", hint=hint)
    # Nothing that a server says to a login is shown: an old one repeats the command, password and all.
    if isinstance(error, LoginError) or "NOAUTH" in text:
        if "without any password" in str(error):
            return BackendRefusedError(
                f"{peer} has no password, and one was given", hint="an endpoint without a password"
            )
        given = f"user {login.username!r}" if login.username else "the default user"
        what = f"refused the password of {given}" if login.password else "asks for a password, and none was given"
        return BackendRefusedError(f"{peer} {what}", hint=_LOGIN_HINT)
    if _PERMISSION.search(text):
        return BackendRefusedError(f"{peer} does not permit this user what a rendezvous needs: {shown}", hint=_NEEDS)
    if text.startswith(("ASK ", "CROSSSLOT ")):
        return BackendUnavailableError(f"{peer} says that another node of its cluster has the run's keys")
    if isinstance(error, NoScriptError) or "unknown command" in text.lower():
        return BackendRefusedError(
            f"{peer} does not run scripts as Redis does",
            hint="Redis 6.2 or later, or Valkey, without a proxy; --rdzv-conf sentinel_master=NAME if it is a sentinel",
        )
    if _FOREIGN.search(text):
        return ForeignContentError(f"{peer} answered: {shown}")
    return BackendRefusedError(f"{peer} answered: {shown}", hint="Redis 6.2 or later, or Valkey")


def _lost(peer: str, *, late: bool, unknown: bool) -> BackendError:
    """Return the core's error for a command without a reply."""
    if unknown:
        what = f"no answer from {peer} in time" if late else f"the connection to {peer} was lost before the answer"
        return OutcomeUnknownError(what)
    return BackendUnavailableError(f"no answer from {peer} in time" if late else f"the connection to {peer} was lost")

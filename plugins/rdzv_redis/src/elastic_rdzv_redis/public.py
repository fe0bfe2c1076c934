"""The users of a run's own store, and the published fields about its protection."""

import hashlib
from collections.abc import Mapping
from typing import Final

from elastic_core.api import WaitBudget
from elastic_core.api.stores import BackendUnavailableError
from elastic_rdzv_redis.talk import Talk

USER: Final = "elastic"
"""The user of a run's nodes, and of its commands."""
_ANYBODY: Final = "public"
_KEY: Final = "elastic:public"
_COMMANDS: Final = "+eval +evalsha +ping +publish +subscribe +unsubscribe +time +del +pexpireat +@hash +@sortedset"
"""The commands of the driver and of its scripts. None of them changes the server's settings, or copies or ends it."""


def users(password: str) -> tuple[str, ...]:
    """Return the lines of a server's configuration for its users: the run's, and a public one that may read one key."""
    digest = hashlib.sha256(password.encode()).hexdigest()
    return (
        "user default off resetpass resetkeys resetchannels -@all",
        f"user {USER} on #{digest} ~elastic:* resetchannels &elastic:* -@all {_COMMANDS}",
        f"user {_ANYBODY} on nopass ~{_KEY} resetchannels -@all +hgetall",
    )


def read_public(talk: Talk) -> tuple[bytes | list[bytes], dict[str, str]]:
    """Return the first reply of a server, and the fields that the host of a run's store publishes.

    Raises:
        BackendUnavailableError, WaitCancelledError: as in `Talk.ask`.
    """
    first = talk.ask("AUTH", _ANYBODY, _ANYBODY)
    if first != b"+OK":
        return first, {}
    reply = talk.ask("HGETALL", _KEY)
    words = [word.decode(errors="replace") for word in reply] if isinstance(reply, list) else []
    return first, dict(zip(words[::2], words[1::2], strict=False))


def write_public(
    host: str, port: int, password: str, shown: Mapping[str, str], *, timeout_s: float, wait: WaitBudget
) -> None:
    """Publish fields to all clients in a store that this node hosts.

    Raises:
        BackendUnavailableError: the store does not accept them.
        WaitCancelledError: the agent cancelled the call.
    """
    with Talk(host, port, timeout_s=timeout_s, wait=wait) as talk:
        pairs = [word for pair in shown.items() for word in pair]
        for words in (("AUTH", USER, password), ("HSET", _KEY, *pairs)):
            reply = talk.ask(*words)
            if not isinstance(reply, bytes) or reply.startswith(b"-"):
                raise BackendUnavailableError(f"the store's server has refused {words[0]}: {reply!r}")

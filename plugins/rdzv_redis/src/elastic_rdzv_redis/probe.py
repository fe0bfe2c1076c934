"""The kind of server at an endpoint, checked before a client library connects, whose errors would not tell it apart."""

import enum
from collections.abc import Callable, Mapping
from typing import NamedTuple

from elastic_core.api import WaitBudget
from elastic_rdzv_redis.public import USER, read_public
from elastic_rdzv_redis.talk import Talk


class Answer(enum.Enum):
    """The kind of server."""

    OURS = "this run's store"
    OTHER_RUN = "a store of another run or user, protected by another password"
    OPEN_SERVER = "a Redis or Valkey server that is not the embedded store of a run"
    STRANGER = "something that is no Redis or Valkey server"


class Found(NamedTuple):
    """The kind of server, its published fields, and the tried password; empty if none was tried."""

    answer: Answer
    public: Mapping[str, str]
    password: str


def who_answers(
    host: str, port: int, choose: Callable[[Mapping[str, str]], str], *, timeout_s: float, wait: WaitBudget
) -> Found:
    """Connect, try a password and return the kind of server.

    Args:
        host: Its host.
        port: Its port.
        choose: Returns the password for a store with these published fields; empty if there is none to try.
        timeout_s: Time limit.
        wait: Cancels the call.

    Raises:
        BackendUnavailableError: there is no listener, or no response within `timeout_s`. A closed connection counts as
            a host that ends, or a tunnel to one that is not there yet.
        WaitCancelledError: the agent cancelled the call.
    """
    with Talk(host, port, timeout_s=timeout_s, wait=wait) as talk:
        first, public = read_public(talk)
        if isinstance(first, list) or not first.startswith((b"+OK", b"-WRONGPASS", b"-ERR", b"-DENIED", b"-NOAUTH")):
            return Found(Answer.STRANGER, {}, "")
        if not first.startswith((b"+OK", b"-WRONGPASS", b"-ERR invalid password")):
            return Found(Answer.OPEN_SERVER, {}, "")
        password = choose(public)
        if password and talk.ask("AUTH", USER, password) == b"+OK":
            return Found(Answer.OURS, public, password)
        # A server without passwords knows no user of that name, either.
        is_open = not public and talk.ask("PING") == b"+PONG"
        return Found(Answer.OPEN_SERVER if is_open else Answer.OTHER_RUN, public, "")

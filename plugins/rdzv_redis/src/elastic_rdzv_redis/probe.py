"""Who answers at an endpoint: asked before a client library is let near it, whose words would not say."""

import enum
from collections.abc import Callable, Mapping
from typing import NamedTuple

from elastic_core.api import WaitBudget
from elastic_rdzv_redis.public import USER, read_public
from elastic_rdzv_redis.talk import Talk


class Answer(enum.Enum):
    """Who it is."""

    OURS = "this run's store"
    OTHER_RUN = "a store of another run or user, protected by another password"
    OPEN_SERVER = "a Redis or Valkey server that is not the embedded store of a run"
    STRANGER = "something that is no Redis or Valkey server"


class Found(NamedTuple):
    """Who answers, what it shows to anybody, and the password that was tried; empty: none."""

    answer: Answer
    public: Mapping[str, str]
    password: str


def who_answers(
    host: str, port: int, choose: Callable[[Mapping[str, str]], str], *, timeout_s: float, wait: WaitBudget
) -> Found:
    """Connect, try a password and return who it is.

    Args:
        host: Where it is.
        port: Its port.
        choose: Gives the password for a store that shows this to anybody; empty: there is none to try.
        timeout_s: How long it may take.
        wait: Ends it.

    Raises:
        BackendUnavailableError: nobody listens, or says a word within `timeout_s`. One that hangs up is taken for a
            host that ends, or a tunnel to one that is not there yet.
        WaitCancelledError: the agent asked the call to end.
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

"""Withdraws the seat of an agent that died, so that the other nodes notice immediately.

The guard starts this as a separate process when the agent has died. The process reads from standard input: one line
with everything (`encode`), then, when the workers are dead, `go`. After any error it exits silently, because the seat's
lease ends on its own.
"""

import importlib
import json
import os
import signal
import sys
import zlib
from base64 import b64decode, b64encode
from contextlib import suppress

_HARD_LIMIT_S = 12
_CONNECT_S = 8.0  # on a busy machine, importing a client and connecting take seconds
_WITHDRAW_S = 4.0
_ANNOUNCE_S = 3.0
_LEASE_S = 5.0
_READ_S = 1.0  # time for the current leader to read that no worker is left


def encode(store: str, seat: bytes, settings: bytes) -> str:
    """Return one word with the input of the process: store class, seat and settings as JSON, path and environment.

    The agent's import path and environment are needed to find and configure its store. They may contain secrets, so
    they are sent only through pipes.
    """
    orders = {
        "store": store,
        "seat": seat.decode(),
        "settings": settings.decode(),
        "path": [os.path.abspath(entry) for entry in sys.path],  # noqa: PTH100  # empty: working directory
        "environ": dict(os.environ),
    }
    return b64encode(zlib.compress(json.dumps(orders).encode())).decode()


def main() -> None:
    """Act on standard input. Called: as the only function of a new interpreter."""
    # SIGALRM ends this process if a call hangs. The guard blocks all signals, and this process inherits that.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.alarm(_HARD_LIMIT_S)
    try:
        _act()
    except Exception:  # noqa: BLE001  # a plugin's errors too; they have no reader
        os._exit(1)
    os._exit(0)  # without waiting for threads of a client library


def _act() -> None:
    orders = json.loads(zlib.decompress(b64decode(sys.stdin.buffer.readline())))
    sys.path[:] = orders["path"]
    os.environ.update(orders["environ"])

    import msgspec

    from elastic_core.rendezvous.member.documents import HeldSeat, MemberRecord, decode
    from elastic_core.rendezvous.store import Seat
    from elastic_core.system.clock import WaitBudget
    from elastic_core.types import RendezvousSettings

    module, _, name = orders["store"].partition(":")
    kind = getattr(importlib.import_module(module), name)
    settings = msgspec.json.decode(orders["settings"], type=RendezvousSettings)
    may_host = getattr(kind, "hosted_by_member", False) or any(spec.name == "is_host" for spec in kind.options)
    if may_host:  # only connect to the run's store; start no server in place of a dead one
        settings = msgspec.structs.replace(settings, options={**settings.options, "is_host": False})
    store = kind(settings)
    store.connect(wait=WaitBudget.lasting(_CONNECT_S))
    if sys.stdin.buffer.readline() != b"go\n":
        return
    held = msgspec.json.decode(orders["seat"], type=HeldSeat)
    seat: Seat = held
    store.withdraw(seat, wait=WaitBudget.lasting(_WITHDRAW_S))
    with suppress(Exception):  # any error of a store: waiting nodes then wait as long as after a power loss
        wait = WaitBudget.lasting(_ANNOUNCE_S)
        members = store.members(wait=wait).members if held.gone else ()
        if any(decode(one.record, MemberRecord).state in ("ready", "out") for one in members):
            # A returned seat looks like an ended lease. A record in a seat behind all others distinguishes them.
            seat = store.enlist(held.gone.encode(), incarnation=seat.incarnation, ttl_s=_LEASE_S, wait=wait)
            wait.sleep(_READ_S)
            store.withdraw(seat, wait=WaitBudget.lasting(_WITHDRAW_S))

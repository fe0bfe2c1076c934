"""What is left to do for an agent that died: withdraw its seat, so that the other nodes know at once.

The guard starts this as a process of its own when the agent has died. It is told on standard input: one line with
everything (`encode`), then, when the workers are dead, `go`. Whatever goes wrong, it gives up without a word: the
seat's lease ends by itself.
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
_CONNECT_S = 8.0  # a machine with other work to do needs seconds for what a client imports and asks to connect
_WITHDRAW_S = 4.0
_ANNOUNCE_S = 3.0
_LEASE_S = 5.0
_READ_S = 1.0  # for whoever leads by then to read that no worker is left


def encode(store: str, seat: bytes, settings: bytes) -> str:
    """Return as one word what the process must know: the store's class, seat and settings as JSON, and its world.

    The agent's import path and environment are those that its store was found and configured with: secrets among them,
    which is why they travel through pipes alone.
    """
    orders = {
        "store": store,
        "seat": seat.decode(),
        "settings": settings.decode(),
        "path": [os.path.abspath(entry) for entry in sys.path],  # noqa: PTH100  # the empty one is the directory
        "environ": dict(os.environ),
    }
    return b64encode(zlib.compress(json.dumps(orders).encode())).decode()


def main() -> None:
    """Act as told on standard input. Called: as the only thing that a fresh interpreter does."""
    # The kernel ends us, whatever hangs. The guard's signals are all blocked, and so are ours.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.alarm(_HARD_LIMIT_S)
    try:
        _act()
    except Exception:  # noqa: BLE001  # a plugin's too; nobody is left to be told
        os._exit(1)
    os._exit(0)  # a client library's threads, if any, keep nobody


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
    if may_host:  # we look for the run's store, and begin none in place of a dead one
        settings = msgspec.structs.replace(settings, options={**settings.options, "is_host": False})
    store = kind(settings)
    store.connect(wait=WaitBudget.lasting(_CONNECT_S))
    if sys.stdin.buffer.readline() != b"go\n":
        return
    held = msgspec.json.decode(orders["seat"], type=HeldSeat)
    seat: Seat = held
    store.withdraw(seat, wait=WaitBudget.lasting(_WITHDRAW_S))
    with suppress(Exception):  # a store's too; then those who wait do so for as long as after a loss of power
        wait = WaitBudget.lasting(_ANNOUNCE_S)
        members = store.members(wait=wait).members if held.gone else ()
        if any(decode(one.record, MemberRecord).state in ("ready", "out") for one in members):
            # A seat that was given back looks like one whose lease has ended. A record behind all others tells them.
            seat = store.enlist(held.gone.encode(), incarnation=seat.incarnation, ttl_s=_LEASE_S, wait=wait)
            wait.sleep(_READ_S)
            store.withdraw(seat, wait=WaitBudget.lasting(_WITHDRAW_S))

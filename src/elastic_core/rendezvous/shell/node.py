"""This node as seen by the other members: its published settings, and its addresses."""

import os
import socket

from elastic_core.rendezvous.address import LOOPBACK, full_name, host_identity, is_loopback, route_source
from elastic_core.rendezvous.coordinated_options import (
    DEFAULT_CONNECT_TIMEOUT_S,
    DEFAULT_JOIN_TIMEOUT_S,
    DEFAULT_LEASE_TTL_S,
)
from elastic_core.rendezvous.identity import default_node_id, user_name
from elastic_core.rendezvous.member import protocol
from elastic_core.rendezvous.member.documents import MemberRecord
from elastic_core.rendezvous.member.roster import Candidate
from elastic_core.rendezvous.member.state import Me
from elastic_core.rendezvous.store import CoordinationStore
from elastic_core.system.clock import SYSTEM_CLOCK, Clock, WaitBudget
from elastic_core.types import RendezvousSettings

FIRST_CALL_S = 30.0
LAST_CALL_S = 2.0
_OUTSIDE = "192.0.2.1"
"""An address without a host (RFC 5737), from which the kernel determines the outgoing route."""


class MemberNode:
    """A node's settings and addresses. Threading: the driver's thread, once it runs."""

    def __init__(self, store: CoordinationStore, settings: RendezvousSettings, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._on_loopback = False
        self.agent_port = settings.agent_port
        """The UDP port for questions of other members; 0 means a free port."""

    def me(self) -> Me:
        """Return the constant data of this node."""
        settings = self._settings
        options = settings.options
        last_call_s = options.get("last_call_timeout")
        chosen = {name: getattr(settings, name) for name in RendezvousSettings.__struct_fields__}
        own = {
            "node": settings.node_id or os.uname().nodename,
            "incarnation": (settings.incarnation or os.urandom(6).hex())[:12],
            "where": self._store.where,
            "fresh_epoch": os.urandom(6).hex(),
            "secret": os.urandom(16).hex(),
            "user": user_name(),
            "boot": host_identity(),
            "ttl_s": _seconds(options.get("lease_ttl"), DEFAULT_LEASE_TTL_S),
            "first_call_s": _seconds(last_call_s, FIRST_CALL_S),
            "last_call_s": _seconds(last_call_s, LAST_CALL_S),
            "join_timeout_s": _seconds(options.get("join_timeout"), DEFAULT_JOIN_TIMEOUT_S),
            "connect_timeout_s": _seconds(options.get("connect_timeout"), DEFAULT_CONNECT_TIMEOUT_S),
            "hosted": self._store.hosted_by_member,
        }
        return Me(**(chosen | own))

    def place(self, source: str, agent_port: int) -> protocol.Connected:
        """Return this node with the address to publish. Called: when the store was first reached."""
        settings = self._settings
        address = settings.local_addr or source or LOOPBACK
        alternative = ""
        self._on_loopback = not settings.local_addr and is_loopback(address)
        if self._on_loopback:
            alternative = route_source(_OUTSIDE) or full_name(wait=WaitBudget.lasting(2.0, clock=self._clock))
        node = settings.node_id or default_node_id(os.uname().nodename, address)
        return protocol.Connected(address=address, alternative=alternative, agent_port=agent_port, node=node)

    def route(self, members: tuple[Candidate, ...]) -> str:
        """Return this node's source address for members on other hosts, if it published a loopback address; else empty.

        The route to them may differ from the route outside that `place` uses.
        """
        boot = host_identity() if self._on_loopback else ""
        given = (
            address
            for member in members
            if self._on_loopback and member.record.boot != boot
            for address in (member.record.address, member.record.alternative)
        )
        sources = (route_source(address) for address in given if not is_loopback(address))
        return next((source for source in sources if source and not is_loopback(source)), "")


def proves_dead(record: MemberRecord) -> bool:
    """Return whether the agent of this record was on this host and has ended, because its port is free.

    Only a process with the same boot id and network can prove that. A port that another process uses proves nothing.
    """
    if not record.boot or record.boot != host_identity() or not record.agent_port:
        return False
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.bind(("::", record.agent_port))
    except OSError:
        return False
    return True


def _seconds(value: object, default_s: float) -> float:
    return float(value) if isinstance(value, (int, float)) else default_s

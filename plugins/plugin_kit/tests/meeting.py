"""A small rendezvous over the memory server, with nearly all capabilities: what the kit's rarer tests are tried on."""

import json
import os
from contextlib import suppress

from elastic_core.api import API_VERSION, ElasticError, RendezvousHandler, RendezvousInfo, WaitBudget
from elastic_core.api.rendezvous import (
    Capability,
    MemberLost,
    NodesWaiting,
    RendezvousClosed,
    RendezvousClosedError,
    RosterMember,
)
from elastic_core.api.stores import CONTROL_KEY, ROUND_KEY, Revisions, Topic, WaitExpiredError
from elastic_plugin_kit import MemoryStore

TTL_S = 60.0
LAST_CALL_S = 0.1
LOOK_S = 0.05


class Meeting(RendezvousHandler):
    """The member with the lowest seat writes the roster: of all that are ready, once nobody has come for a while."""

    api_version = API_VERSION
    capabilities = frozenset(Capability)

    def __init__(self, settings, *, server):
        super().__init__(settings)
        self._store = MemoryStore(settings, server=server)
        self._seat = None
        self._token = 0
        self._roster = []

    def next_rendezvous(self):
        self.wait.check()
        record = str(self._token).encode()
        if self._seat is None:
            self._seat = self._store.enlist(record, incarnation=os.urandom(6).hex(), ttl_s=TTL_S, wait=self.wait)
        else:
            self._store.update(self._seat, record, wait=self.wait)
        while True:
            if self.is_closed():
                raise RendezvousClosedError(f"run {self.settings.run_id!r} is over")
            written = self._store.load(ROUND_KEY, wait=self.wait)
            current = json.loads(written.value) if written else {"token": 0, "roster": []}
            if current["token"] > self._token and self._seat.incarnation in current["roster"]:
                self._token, self._roster = current["token"], current["roster"]
                return self.info(current)
            self._lead(written, current["token"])
            self._listen(LOOK_S)

    def info(self, current):
        members = tuple(RosterMember(node_id=name, local_world_size=1) for name in current["roster"])
        return RendezvousInfo(
            rank=current["roster"].index(self._seat.incarnation),
            world_size=len(members),
            round_token=current["token"],
            nonce=current["nonce"],
            members=members,
        )

    def watch(self, timeout_s):
        end = WaitBudget.lasting(timeout_s)
        while True:
            change = self.change()
            if change is not None or end.remaining_s() <= 0:
                return change
            self._listen(end.remaining_s(LOOK_S))

    def change(self):
        if self.is_closed():
            return RendezvousClosed()
        live = self._live()
        lost = [name for name in self._roster if name not in live]
        if lost:
            return MemberLost(node_id=lost[0])
        waiting = self.num_nodes_waiting()
        return NodesWaiting(count=waiting) if waiting else None

    def num_nodes_waiting(self):
        return sum(name not in self._roster for name in self._live())

    def is_closed(self):
        return self._store.load(CONTROL_KEY, wait=self.wait) is not None

    def set_closed(self):
        self._store.swap(CONTROL_KEY, b"closed", expect=None, keep_s=60.0, wait=self.wait)

    def shutdown(self):
        if self._seat is not None:
            with suppress(ElasticError):
                self._store.withdraw(self._seat, wait=WaitBudget.lasting(1.0))
        self._store.close()
        return True

    def _live(self):
        return [member.incarnation for member in self._store.members(wait=self.wait).members]

    def _lead(self, written, token):
        members = self._store.members(wait=self.wait).members
        ready = [m.incarnation for m in members if token == 0 or m.record == str(token).encode() or m.record == b"0"]
        if members[0].incarnation != self._seat.incarnation or not self._enough(members, ready):
            return
        made = {"token": token + 1, "nonce": os.urandom(4).hex(), "roster": ready}
        expect = written.version if written else None
        self._store.swap(ROUND_KEY, json.dumps(made).encode(), expect=expect, keep_s=60.0, wait=self.wait)

    def _enough(self, members, ready):
        if len(ready) < max(self.settings.min_nodes, len(members)):
            return False
        if len(ready) == self.settings.max_nodes:
            return True
        now = self._revisions()
        with suppress(WaitExpiredError):
            self._store.watch(now, (Topic.MEMBERS,), timeout_s=LAST_CALL_S, wait=self.wait)
        return self._revisions().members == now.members

    def _listen(self, seconds):
        self._store.watch(self._revisions(), tuple(Topic), timeout_s=seconds, wait=self.wait)

    def _revisions(self):
        return self._store.watch(Revisions(), (), timeout_s=0, wait=self.wait).revisions

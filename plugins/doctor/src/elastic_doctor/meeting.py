"""The check of a run's nodes together: they meet in its store, try each other's ports, and the first reports all.

Each takes a seat beside the run's own, under the id `RUN.doctor`, with its findings. When all have come, the node with
the lowest seat writes the list of nodes. Each node then tries those after it, and the first one collects the findings.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from elastic_core.api import SYSTEM_CLOCK, CoordinationStore, Record, WaitBudget, decode_json, encode_json
from elastic_core.api.commands import StoreChoice, open_store
from elastic_core.api.stores import (
    CONTROL_KEY,
    ROUND_KEY,
    BackendUnavailableError,
    OutcomeUnknownError,
    Seat,
    is_loopback,
    route_source,
)
from elastic_doctor.findings import WORKERS, Finding, Level, NodeFindings
from elastic_doctor.probing import Answering, Station, Trial, probe

SUFFIX: Final = ".doctor"
"""The suffix of the run's id, so that the run itself is not touched."""
MEETS_SHARE: Final = 0.6
"""The part of the time in which nodes are waited for; the rest is for tries and reports."""
_TTL_S: Final = 6.0
_RENEW_S: Final = 2.0
_LOOK_S: Final = 0.1
_KEEP_S: Final = 60.0
_BEHIND: Final = 8
"""The number of nodes that each node tries: those after it, in a ring."""
_MOST_TRIED: Final = 200
_OUTSIDE: Final = "192.0.2.1"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")

_D = TypeVar("_D", "_Seated", "_Plan", "_Verdict")
_T = TypeVar("_T")


class _Seated(Record, frozen=True, kw_only=True):
    """A node's record; `done`: it has tried the others."""

    station: Station
    findings: NodeFindings
    done: str = ""


class _Plan(Record, frozen=True, kw_only=True):
    """The participants, in the order in which they joined. A node without a proof of `secret` gets no response."""

    secret: str
    stations: tuple[Station, ...]


class _Verdict(Record, frozen=True, kw_only=True):
    secret: str
    failed: bool


class Meeting(Record, frozen=True, kw_only=True):
    """The result of a meeting. `leader`: this node has the findings of all, and prints them."""

    failed: bool
    leader: bool
    nodes: tuple[NodeFindings, ...] = ()
    together: tuple[Finding, ...] = ()
    """Findings about the nodes together: missing nodes, and differences."""


def meet(
    choice: StoreChoice,
    own: NodeFindings,
    count: int,
    *,
    limit_s: float,
    agent_port: int = 0,
    master_port: int = 0,
) -> Meeting:
    """Exchange findings with `count` nodes in all. Blocks for `limit_s` at most.

    Raises:
        ElasticError: the store rejects this client, or can't be used.
        OSError: a chosen port can't be opened.
    """
    with ExitStack() as cleanup:
        answering = Answering(agent_port, master_port)
        cleanup.callback(answering.close)
        store = open_store(replace(choice, run_id=choice.run_id + SUFFIX), max_nodes=count, may_host=True)
        cleanup.callback(store.close)
        return _Participant(store, answering, own, count, limit_s).take_part()


class _Participant:
    def __init__(
        self, store: CoordinationStore, answering: Answering, own: NodeFindings, count: int, limit_s: float
    ) -> None:
        self._store, self._answering, self._own, self._count = store, answering, own, count
        self._began_s = SYSTEM_CLOCK.monotonic_s()
        self._end_s = self._began_s + limit_s
        self._meets_s = self._began_s + MEETS_SHARE * limit_s
        self._incarnation = os.urandom(8).hex()
        self._ahead, self._renew_s = 1, 0.0
        self._seat: Seat | None = None
        self._pause = WaitBudget()

    def take_part(self) -> Meeting:
        address = self._until(self._meets_s, lambda: self._store.connect(wait=self._wait()))
        if address is None:
            return self._alone("the store was not reached in time: see the endpoint")
        station = self._station(address)
        seated = _Seated(station=station, findings=self._own)
        self._seat = self._store.enlist(
            encode_json(seated), incarnation=self._incarnation, ttl_s=_TTL_S, wait=self._wait()
        )
        self._ahead = self._seat.ahead
        try:
            plan = self._until(self._end_s, self._plan)
            if plan is None:
                return self._alone("no node has published the list of nodes in time")
            self._answering.incarnation, self._answering.secret = self._incarnation, plan.secret
            findings = replace(self._own, findings=(*self._own.findings, *self._tried(plan)))
            self._update(_Seated(station=station, findings=findings, done=plan.secret))
            return self._told(plan, findings)
        finally:
            self._withdraw()

    def _alone(self, what: str) -> Meeting:
        finding = Finding(check="nodes", level=Level.FAIL, what=what, remedy="a longer --time-limit, or the endpoint")
        return Meeting(failed=True, leader=True, nodes=(self._own,), together=(finding,))

    def _station(self, address: str) -> Station:
        other = route_source(_OUTSIDE) if is_loopback(address) else ""
        try:
            boot = _BOOT.read_text().strip()
        except OSError:
            boot = ""
        return Station(
            incarnation=self._incarnation,
            node=self._own.node,
            boot=boot,
            address=address or other,
            alternative=other,
            udp_port=self._answering.udp_port,
            tcp_port=self._answering.tcp_port,
        )

    # --- the participants

    def _plan(self) -> _Plan | None:
        """Return the participants, once they are known; the first node decides."""
        self._renew()
        plan = self._document(CONTROL_KEY, _Plan)
        if plan is not None and any(one.incarnation == self._incarnation for one in plan.stations):
            return plan
        if self._ahead:
            return None
        seated = self._seated()
        if len(seated) < self._count and SYSTEM_CLOCK.monotonic_s() < self._meets_s:
            return None
        plan = _Plan(secret=os.urandom(16).hex(), stations=tuple(one.station for one in seated))
        self._swap(CONTROL_KEY, encode_json(plan))
        return None  # what stands is read

    def _seated(self) -> list[_Seated]:
        members = self._store.members(wait=self._wait()).members
        return [one for one in (_read(member.record, _Seated) for member in members) if one is not None]

    # --- what they find

    def _tried(self, plan: _Plan) -> list[Finding]:
        stations = plan.stations
        at = next(at for at, one in enumerate(stations) if one.incarnation == self._incarnation)
        behind = [stations[(at + step) % len(stations)] for step in range(1, min(_BEHIND, len(stations) - 1) + 1)]
        others = stations[1 : _MOST_TRIED + 1] if at == 0 else behind  # the first compares clocks with its own
        left_s = max(0.5, (self._end_s - SYSTEM_CLOCK.monotonic_s()) / 2)
        trials = probe(others, stations[at], plan.secret, limit_s=min(left_s, 5.0), renew=self._renew)
        return findings_of(trials)

    def _told(self, plan: _Plan, own: NodeFindings) -> Meeting:
        if plan.stations[0].incarnation != self._incarnation:
            verdict = self._until(self._end_s + _TTL_S, lambda: self._verdict(plan))
            if verdict is None:
                return replace(self._alone("the first node has not said what all found"), nodes=(own,))
            return Meeting(failed=verdict.failed, leader=False, nodes=(own,))
        latest: dict[str, NodeFindings] = {}

        def all_done() -> bool | None:
            self._renew()
            for one in self._seated():
                if one.done == plan.secret:
                    latest[one.station.incarnation] = one.findings
            return True if len(latest) == len(plan.stations) else None

        self._until(self._end_s, all_done)
        meeting = self._together(plan, latest)
        self._swap(ROUND_KEY, encode_json(_Verdict(secret=plan.secret, failed=meeting.failed)))
        return meeting

    def _verdict(self, plan: _Plan) -> _Verdict | None:
        self._renew()
        verdict = self._document(ROUND_KEY, _Verdict)
        return verdict if verdict is not None and verdict.secret == plan.secret else None

    def _together(self, plan: _Plan, latest: dict[str, NodeFindings]) -> Meeting:
        nodes = tuple(latest[one.incarnation] for one in plan.stations if one.incarnation in latest)
        silent = [one.node for one in plan.stations if one.incarnation not in latest]
        together = [*missing(len(plan.stations), self._count, silent), *differences(nodes)]
        every = [*together, *(finding for node in nodes for finding in node.findings)]
        failed = any(finding.level is Level.FAIL for finding in every)
        return Meeting(failed=failed, leader=True, nodes=nodes, together=tuple(together))

    # --- the store

    def _until(self, end_s: float, look: Callable[[], _T | None]) -> _T | None:
        """Return the result of a read, which is repeated until then, also if the store is unreachable for a moment."""
        while True:
            try:
                found = look()
            except (BackendUnavailableError, OutcomeUnknownError):
                found = None
            if found is not None or SYSTEM_CLOCK.monotonic_s() >= end_s:
                return found
            self._pause.sleep(_LOOK_S)

    def _wait(self) -> WaitBudget:
        return WaitBudget.lasting(max(1.0, self._end_s - SYSTEM_CLOCK.monotonic_s()))

    def _renew(self) -> None:
        now_s = SYSTEM_CLOCK.monotonic_s()
        if self._seat is not None and now_s >= self._renew_s:
            self._renew_s = now_s + _RENEW_S
            renewal = self._store.renew(self._seat, ttl_s=_TTL_S, wait=self._wait())
            self._ahead = 1 if renewal is None else renewal.ahead

    def _update(self, seated: _Seated) -> None:
        seat = self._seat
        assert seat is not None
        self._until(self._end_s, lambda: self._store.update(seat, encode_json(seated), wait=self._wait()) or None)

    def _document(self, key: str, kind: type[_D]) -> _D | None:
        found = self._store.load(key, wait=self._wait())
        return None if found is None else _read(found.value, kind)

    def _swap(self, key: str, raw: bytes) -> None:
        found = self._store.load(key, wait=self._wait())
        expect = None if found is None else found.version
        self._store.swap(key, raw, expect=expect, keep_s=_KEEP_S, wait=self._wait())

    def _withdraw(self) -> None:
        if self._seat is not None:
            try:
                self._store.withdraw(self._seat, wait=WaitBudget.lasting(5.0))
            except (BackendUnavailableError, OutcomeUnknownError, TimeoutError):
                return  # its lease does it


def _read(raw: bytes, kind: type[_D]) -> _D | None:
    try:
        return decode_json(raw, kind)
    except (msgspec.DecodeError, UnicodeDecodeError):  # of an earlier version
        return None


# --- what follows from all


def findings_of(trials: Sequence[Trial]) -> list[Finding]:
    """Return the findings from tries of other nodes' ports and clocks."""
    found = []
    for kind, name in (("udp", "agents' ports"), ("tcp", "master port")):
        shut = [trial.node for trial in trials if not getattr(trial, kind)]
        if shut:
            what = f"no answer by {kind.upper()} from {_names(shut)}"
            remedy = "open the port in the firewall (--agent-port, --master-port choose one), or --local-addr"
            found.append(Finding(check=name, level=Level.FAIL, what=what, remedy=remedy))
        elif trials:
            found.append(Finding(check=name, level=Level.OK, what=f"{len(trials)} tried"))
    late = [trial for trial in trials if trial.skew_s is not None and abs(trial.skew_s) - trial.doubt_s > SKEW_S]
    if late:
        shown = ", ".join(f"{trial.node} by {trial.skew_s:+.1f} s" for trial in late[:_BEHIND])
        what = f"other clocks than this node's: {shown}; elastic run compares none, logs and checkpoints have them"
        found.append(Finding(check="clocks", level=Level.WARN, what=what, remedy="chronyd or another NTP client there"))
    return found


SKEW_S: Final = 1.0
"""The difference of clocks above which there is a finding."""


def missing(seated: int, count: int, silent: Sequence[str]) -> list[Finding]:
    """Return a finding about nodes that have not come, or have come and do not respond."""
    if seated < count:
        what = f"{seated} of {count} nodes have joined"
        remedy = "start elastic doctor on the others at the same time, or a longer --time-limit"
        return [Finding(check="nodes", level=Level.FAIL, what=what, remedy=remedy)]
    if silent:
        what = f"{_names(silent)} joined, and reported nothing"
        return [Finding(check="nodes", level=Level.FAIL, what=what, remedy="look there")]
    return [Finding(check="nodes", level=Level.OK, what=f"{count} have met")]


_STRICT: Final = ("torch", "nccl", "elastic-core", WORKERS)
"""Facts that must not differ in a run."""


def differences(nodes: Sequence[NodeFindings]) -> list[Finding]:
    """Return findings about nodes with other versions or numbers than the majority."""
    found = []
    for fact in dict.fromkeys(fact for node in nodes for fact in node.facts):
        groups: dict[str, list[str]] = {}
        for node in nodes:
            groups.setdefault(node.facts.get(fact, "none"), []).append(node.node)
        if len(groups) > 1:
            most_first = sorted(groups.items(), key=lambda group: -len(group[1]))
            shown = "; ".join(f"{value or 'none'} on {_names(names)}" for value, names in most_first)
            level = Level.FAIL if fact in _STRICT else Level.WARN
            found.append(Finding(check=fact, level=level, what=f"not the same: {shown}", remedy="one for all nodes"))
    return found


def _names(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _BEHIND} more" if len(nodes) > _BEHIND else ""
    return ", ".join(nodes[:_BEHIND]) + more

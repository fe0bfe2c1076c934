"""The thread that performs the operations of the membership machine on a store."""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeVar, assert_never

import msgspec
from msgspec.structs import replace

from elastic_core import messages as m
from elastic_core.errors import (
    BackendRefusedError,
    BackendUnavailableError,
    ElasticError,
    OutcomeUnknownError,
    WaitCancelledError,
    WaitExpiredError,
)
from elastic_core.plugin_faults import wrong_answer
from elastic_core.rendezvous.member import protocol
from elastic_core.rendezvous.member.documents import (
    ControlDocument,
    HeldSeat,
    MemberRecord,
    RoundDocument,
    bounded,
    decode,
    encode,
)
from elastic_core.rendezvous.member.machine import step
from elastic_core.rendezvous.member.outage import needs_lease, store_failure
from elastic_core.rendezvous.member.roster import Candidate
from elastic_core.rendezvous.member.state import LONG_AGO_S, NEVER_S, State, Want
from elastic_core.rendezvous.shell.grants import peer_view
from elastic_core.rendezvous.shell.node import MemberNode, proves_dead
from elastic_core.rendezvous.shell.peers import PeerEndpoint
from elastic_core.rendezvous.store import (
    CONTROL_KEY,
    CoordinationStore,
    Document,
    Members,
    Renewal,
    Revisions,
    Seat,
    Swapped,
    Watched,
)
from elastic_core.reports import AgentChannel, NodeReport
from elastic_core.system.clock import SYSTEM_CLOCK, Clock, WaitBudget
from elastic_core.types import FailureClass, Restart, Stop

CONNECT_TRY_S = 5.0
LEAVE_S = 0.7
HOST_LEAVE_S = 2.2
"""How long a node that hosts the store waits for other nodes to read how the run ended, in seconds."""
_STUCK_PAUSE_S = 0.2

_NOTHING = Revisions()
_T = TypeVar("_T")
Emitted = protocol.Announcement | m.Fenced | m.SeatHeld | m.DecisionAsked | m.AnswersGathered | m.StoreCall

OPERATIONS: Final[Mapping[type, str]] = {
    protocol.Connect: "connect",
    protocol.Enlist: "enlist",
    protocol.Update: "update",
    protocol.Renew: "renew",
    protocol.Withdraw: "withdraw",
    protocol.ReadMembers: "members",
    protocol.Load: "load",
    protocol.SurveyRun: "survey",
    protocol.Swap: "swap",
    protocol.Watch: "watch",
}
"""The store's methods, by operation."""


class PendingCall(NamedTuple):
    """A store call that has not returned; `due_s` is the latest time at which it should return."""

    operation: str
    began_s: float
    due_s: float


class StoreFault(Exception):
    """An undeclared error of a store; the original error is its cause."""

    def __init__(self, operation: str) -> None:
        super().__init__(operation)
        self.operation = operation


class Driver:
    """One member, from its first request until it leaves, on its own thread.

    Args:
        store: The server's client; called on the driver's thread only.
        node: This node.
        emit: Receives what is for the agent. Threading: the driver's thread.
        ended: Called once, as the last call, with the error that ended the thread early; `None` means success.
        turned_s: Returns when the agent's loop last ran. It must run more often than every half of a lease.

    Threading: `request`, `post`, `urge` and `join` from any thread.
    """

    def __init__(
        self,
        store: CoordinationStore,
        node: MemberNode,
        *,
        emit: Callable[[Emitted], None],
        ended: Callable[[Exception | None], None],
        turned_s: Callable[[], float],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self._node = node
        self._state = State(me=node.me())
        self._emit = emit
        self._ended = ended
        self._turned_s = turned_s
        self._clock = clock
        self._mail: deque[protocol.Event] = deque()
        self._lock = threading.Condition()
        self.call: PendingCall | None = None
        """The current store call. Threading: read on any."""
        self._measured = False
        self._wait: WaitBudget | None = None
        self._interruptible = False
        self._peers: PeerEndpoint | None = None
        self._reached_s = LONG_AGO_S
        self._late_s: float | None = None
        self._fenced_s = LONG_AGO_S
        self._held: tuple[Seat | None, RoundDocument | None] = (None, None)
        self._notices = 0
        self._thread = threading.Thread(target=self._run, name="elastic-member", daemon=True)

    def start(self, *, measured: bool = False) -> None:
        """Start the thread; if `measured`, report each store call as a `StoreCall`."""
        self._measured = measured
        self._thread.start()

    @property
    def started(self) -> bool:
        """Whether the thread was started."""
        return self._thread.ident is not None

    def request(self, request: protocol.Request | m.RequestRestart) -> None:
        """Pass a request of the agent to the machine; all nodes read a decision as a document. Never blocks."""
        match request:
            case m.RequestRestart(reason=reason):
                self.post(m.PublishDecision(decision=Restart(rule=reason)))
            case m.OrderStop(report=NodeReport() as report):
                self.post(replace(request, report=bounded(report)))
            case NodeReport():
                self.post(bounded(request))
            case m.AnnounceDeparture():
                # The store ends with this node: the other nodes first read the verdict, and their workers can save.
                if self._store.hosting and self.in_round:
                    self.post(self._host_leaves())
                self.post(request)
            case m.LeaveRendezvous(close=close):
                if close and self.in_round:
                    self.close_run()
                self.post(request)
            case _:
                self.post(request)

    def close_run(self) -> None:
        """End the run successfully for all nodes, unless its end was decided already. Never blocks."""
        self.post(m.PublishDecision(decision=Stop(reason="the run was closed", outcome="done")))

    def _host_leaves(self) -> m.PublishDecision:
        """Return the decision that ends a run because its store ends with this node."""
        state, now_s = self._state, self._clock.monotonic_s()
        reason = f"node {self.node}, which hosts the rendezvous store, {self._store.where}, is being stopped"
        failure = replace(store_failure(state, reason), failure_class=FailureClass.PREEMPTED, at_s=state.run_s(now_s))
        return m.PublishDecision(decision=Stop(reason=reason), failure=failure)

    def post(self, event: protocol.Event) -> None:
        """Pass an event to the machine; this ends a wait early. Never blocks."""
        with self._lock:
            self._mail.append(event)
            self._lock.notify_all()
            wait = self._wait if self._interruptible else None
            if wait is not None and self.call is not None:
                # The call must end now; if it does not, the call watch counts it as late from here.
                self.call = self.call._replace(due_s=min(self.call.due_s, self._clock.monotonic_s()))
        if wait is not None:
            wait.cancel()

    @property
    def control(self) -> ControlDocument | None:
        """The run's control document as last read."""
        return self._state.run.kept_control

    @property
    def channel(self) -> AgentChannel | None:
        """The secret and port by which the agents of the run reach each other; `None` if not known yet."""
        peers, kept = self._peers, self.control
        if peers is None or kept is None or not kept.secret:
            return None
        return AgentChannel(secret=kept.secret, incarnation=self._state.me.incarnation, port=peers.port)

    @property
    def node(self) -> str:
        """This node's id in the roster."""
        return self._state.me.node

    @property
    def in_round(self) -> bool:
        """Whether this node takes part in a running round, as far as known here."""
        state = self._state
        return state.want is Want.RUN or state.awaiting

    @property
    def ttl_s(self) -> float:
        """The length of the lease, in seconds."""
        return self._state.ttl_s

    @property
    def connect_timeout_s(self) -> float:
        """How long to try to reach the store at first, in seconds."""
        return self._state.me.connect_timeout_s

    @property
    def first_contact_s(self) -> float | None:
        """When the first try to reach the store began; `None` if the store was reached."""
        return None if self._state.connection.ever_connected else self._state.waiting.began_s

    @property
    def stops_s(self) -> tuple[float, float]:
        """When a node without a renewed lease begins to stop its workers, and when the last worker must be dead."""
        state = self._state
        return (state.cut_s, state.fence_s) if needs_lease(state) else (NEVER_S, NEVER_S)

    @property
    def has_post(self) -> bool:
        """Whether a decision must still be published."""
        return self._state.end.post is not None

    def urge(self) -> None:
        """Cancel the current operation."""
        with self._lock:
            wait = self._wait
        if wait is not None:
            wait.cancel()

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended; return whether it has."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # --- on the thread

    def _run(self) -> None:
        failure: Exception | None = None
        try:
            view = peer_view(self._state, self._reached_s)
            self._peers = PeerEndpoint(self._node.agent_port, view=view, on_event=self.post, clock=self._clock)
            events: tuple[protocol.Event, ...] = self._take()
            while True:
                now_s = self._clock.monotonic_s()
                done = step(self._state, events, now_s=now_s)
                self._state = done.state
                self._peers.update(peer_view(self._state, self._reached_s))
                self._guard()  # before a round is announced: its workers must not start with an old fence
                for announcement in done.announcements:
                    self._emit(announcement)
                if isinstance(done.operation, protocol.Gone):
                    break
                answer = self._perform(done.operation)
                events = (*(() if answer is None else (answer,)), *self._take())
        except Exception as err:  # noqa: BLE001  # any error of a store must reach the agent as one clear line
            failure = err
        finally:
            self._ended(self._close(failure))

    def _close(self, failure: Exception | None) -> Exception | None:
        """Close peers and store; return the error that ended the thread early, or the first error of closing."""
        for held in (self._peers, self._store):
            try:
                if held is not None:
                    held.close()
            except Exception as err:  # noqa: BLE001  # as in `_run`: a caller that waits for the end needs the error
                failure = failure or (_fault("close", err) if held is self._store else err)
        return failure

    def _take(self) -> tuple[protocol.Event, ...]:
        with self._lock:
            events = tuple(self._mail)
            self._mail.clear()
        return events

    def _guard(self) -> None:
        """Update what the guard does if this agent dies: when to kill the workers, and which seat to give back."""
        state = self._state
        # Only a node that may have workers needs a fence: also before its next round, for those that were kept.
        if state.want in (Want.JOIN, Want.RUN, Want.STOP) and state.fence_s != self._fenced_s:
            self._fenced_s = state.fence_s
            self._emit(m.Fenced(until_s=state.fence_s))
        if self._held != (state.lease.seat, state.mine):
            self._held = state.lease.seat, state.mine
            held = self._held_seat()
            cls = type(self._store)
            seat = b"" if held is None else msgspec.json.encode(held)
            self._emit(m.SeatHeld(store=f"{cls.__module__}:{cls.__qualname__}" if seat else "", seat=seat))

    def _held_seat(self) -> HeldSeat | None:
        seat, mine = self._state.lease.seat, self._state.mine
        if seat is None:
            return None
        gone = b""
        # If this agent dies, its guard publishes this record. Without it, nodes outside the round would treat the seat
        # like an ended lease, and wait for workers that may still train.
        if mine is not None:
            record = MemberRecord(
                epoch=mine.epoch, node=self.node, state="gone", seen=mine.token, token=mine.token, nonce=mine.nonce
            )
            gone = encode(record)
        return HeldSeat(number=seat.number, incarnation=seat.incarnation, ahead=0, gone=gone.decode())

    # --- operations

    def _perform(self, operation: protocol.Operation) -> protocol.Event | None:
        if isinstance(operation, protocol.Pause):
            self._pause(operation.until_s)
            return None
        if isinstance(operation, m.DecisionAsked | m.AnswersGathered):
            # There is no wait: a policy or a hook may need minutes, and the lease must be renewed meanwhile.
            self._emit(operation)
            return protocol.WatchEnded(watched=None)
        # An agent that hangs must not look alive: without renewals its seat is removed, and the other nodes continue.
        if isinstance(operation, protocol.Renew) and self._loop_is_stuck():
            self._pause(self._clock.monotonic_s() + _STUCK_PAUSE_S)
            return protocol.Failed(text="this agent's own loop does not turn", own=True)
        key = operation.key if isinstance(operation, (protocol.Load, protocol.Swap)) else ""
        write = isinstance(operation, protocol.Enlist | protocol.Update | protocol.Swap)
        try:
            answer = self._ask_store(operation)
        except WaitCancelledError:
            if isinstance(operation, protocol.Watch):
                return protocol.WatchEnded(watched=None)
            return protocol.Failed(text=f"{self._store.where}: the call was given up", key=key)
        except WaitExpiredError:
            # A request without a reply may have been carried out: the value is read before a write is repeated.
            text = f"{self._store.where} does not answer"
            return protocol.Failed(text=text, silent=True, write=write, key=key)
        except BackendRefusedError as err:
            return protocol.Failed(text=err.what, refused=True, key=key, hint=err.hint)
        except (BackendUnavailableError, OutcomeUnknownError) as err:
            return protocol.Failed(text=err.what, write=write, key=key, hint=err.hint)
        self._reached_s = self._clock.monotonic_s()
        self._pass_notices()
        return answer

    def _pass_notices(self) -> None:
        notices = self._store.notices
        for notice in notices[self._notices :]:
            self._emit(m.PrintLine(text=notice))
        self._notices = len(notices)

    def _pause(self, until_s: float) -> None:
        with self._lock:
            left_s = until_s - self._clock.monotonic_s()
            if not self._mail and left_s > 0:
                self._lock.wait(None if left_s == NEVER_S else left_s)

    def _loop_is_stuck(self) -> bool:
        """Return whether the agent's loop has not run for half a lease, although this thread ran in a sixth of it."""
        now_s, ttl_s = self._clock.monotonic_s(), self._state.ttl_s
        if now_s - self._turned_s() < ttl_s / 2:
            self._late_s = None
            return False
        # The whole process may have been stopped until now: the loop gets a moment to run.
        self._late_s = now_s if self._late_s is None else self._late_s
        return now_s - self._late_s > ttl_s / 6

    def _budget(self, operation: protocol.Operation) -> WaitBudget:
        me, now_s = self._state.me, self._clock.monotonic_s()
        if isinstance(operation, protocol.Watch):
            # Somewhat later than the wait itself, which normally ends by its own timeout.
            return WaitBudget(max(operation.until_s, now_s) + self._state.patience_s, clock=self._clock)
        if isinstance(operation, protocol.Connect):
            state = self._state
            first = state.want is Want.JOIN and not state.connection.ever_connected
            limit_s = state.waiting.began_s + me.connect_timeout_s if first else NEVER_S
            return WaitBudget(min(now_s + min(CONNECT_TRY_S, me.connect_timeout_s), limit_s), clock=self._clock)
        if isinstance(operation, protocol.Withdraw):
            return WaitBudget(now_s + max(3.0, self._state.period_s), clock=self._clock)
        # So short that both a call that hangs and a later call of another member end before the lease does.
        return WaitBudget(now_s + self._state.patience_s, clock=self._clock)

    def _ask_store(self, operation: protocol.Operation) -> protocol.Event:
        wait, name = self._budget(operation), OPERATIONS[type(operation)]
        with self._lock:
            self._wait = wait
            self._interruptible = isinstance(operation, (protocol.Watch, protocol.Connect))
            # An event came after the last step: it must not wait for a watch of many seconds.
            if self._interruptible and self._mail:
                wait.cancel()
            now_s = self._clock.monotonic_s()
            self.call = PendingCall(name, now_s, now_s + wait.remaining_s())
        answer: protocol.Event | None = None
        try:
            answer = self._call(operation, wait)
        except ElasticError:
            raise
        except BaseException as err:
            raise _fault(name, err) from err
        finally:
            with self._lock:
                self._wait = self.call = None
                self._interruptible = False
            if self._measured and not isinstance(operation, protocol.Watch):  # a watch waits for other nodes
                took_s = self._clock.monotonic_s() - now_s
                self._emit(m.StoreCall(call=name, took_s=took_s, failed=answer is None))
        return answer

    def _call(self, operation: protocol.Operation, wait: WaitBudget) -> protocol.Event:
        store, me = self._store, self._state.me
        sent_s = self._clock.monotonic_s()
        match operation:
            case protocol.Connect():
                return self._connected(_given(store.connect(wait=wait), str))
            case protocol.Enlist(record=record, ttl_s=ttl_s):
                seat = store.enlist(record, incarnation=me.incarnation, ttl_s=ttl_s, wait=wait)
                return protocol.Enlisted(seat=_given(seat, Seat), record=record, sent_s=sent_s, ttl_s=ttl_s)
            case protocol.Update(seat=seat, record=record):
                return protocol.Updated(record=record, kept=store.update(seat, record, wait=wait))
            case protocol.Renew(seat=seat, ttl_s=ttl_s):
                renewal = store.renew(seat, ttl_s=ttl_s, wait=wait)
                given = None if renewal is None else _given(renewal, Renewal)
                return protocol.Renewed(renewal=given, sent_s=sent_s, ttl_s=ttl_s)
            case protocol.Withdraw(seat=seat):
                store.withdraw(seat, wait=wait)
                return protocol.Withdrawn()
            case protocol.ReadMembers():
                members = tuple(
                    Candidate(
                        seat=member.seat,
                        incarnation=member.incarnation,
                        record=decode(_bytes(member.record, "Member.record"), MemberRecord),
                    )
                    for member in _given(store.members(wait=wait), Members).members
                )
                return protocol.MembersRead(members=members, alternative=self._node.route(members))
            case protocol.Load(key=key):
                found = store.load(key, wait=wait)
                document = None if found is None else _given(found, Document)
                value = _value(key, document)
                return protocol.Loaded(key=key, document=document, value=value, age_s=self._age_s(value, wait))
            case protocol.SurveyRun():
                return self._surveyed(wait)
            case protocol.Swap(key=key, document=new, expect=expect, keep_s=keep_s):
                swapped = _given(store.swap(key, encode(new), expect=expect, keep_s=keep_s, wait=wait), Swapped)
                return protocol.SwapAnswered(key=key, swapped=swapped, value=_value(key, swapped.current))
            case protocol.Watch(since=since, topics=topics, until_s=until_s):
                watched = store.watch(since or _NOTHING, topics, timeout_s=max(0.0, until_s - sent_s), wait=wait)
                return protocol.WatchEnded(watched=_given(watched, Watched))
            case m.DecisionAsked() | m.AnswersGathered() | protocol.Pause() | protocol.Gone():
                raise AssertionError("not the store's")
            case _:
                assert_never(operation)

    def _connected(self, address: str) -> protocol.Connected:
        assert self._peers is not None
        return self._node.place(address, self._peers.port)

    def _age_s(self, value: ControlDocument | RoundDocument | None, wait: WaitBudget) -> float | None:
        """Return how long ago a run ended, for a new node; `None` if this node does not need it."""
        newcomer = not self._state.run.epoch and isinstance(value, ControlDocument) and value.verdict is not None
        return self._store.keep_age_s(wait=wait) if newcomer else None

    def _surveyed(self, wait: WaitBudget) -> protocol.Surveyed:
        """Return the epochs of runs with a live member, and the silent members."""
        seen = self._store.survey((), wait=wait)
        doubtful = seen.silent | seen.unproven
        records = {one.incarnation: decode(one.record, MemberRecord) for one in seen.members}
        epochs = frozenset(record.epoch for name, record in records.items() if name not in doubtful)
        if type(self._store).survey is CoordinationStore.survey:  # it removes expired seats first
            return protocol.Surveyed(epochs=epochs, silent=None)
        # A member with an ended lease may still train with the grants of its round. Its record, or a free port on this
        # host, can prove that it has no workers.
        may_run = (name for name in doubtful & records.keys() if records[name].state != "gone")
        silent = frozenset(name for name in may_run if not proves_dead(records[name]))
        return protocol.Surveyed(epochs=epochs, silent=silent)


def _fault(operation: str, err: BaseException) -> StoreFault:
    fault = StoreFault(operation)
    fault.__cause__ = err
    return fault


def _given(value: object, kind: type[_T]) -> _T:
    """Return a store's result if it has the right type."""
    if not isinstance(value, kind):
        raise TypeError(wrong_answer(value, f"a {kind.__name__}"))
    return value


def _bytes(value: bytes, field: str) -> bytes:
    """Return a store's content if it is bytes: some client libraries return text or a view."""
    if not isinstance(value, bytes | bytearray):
        raise TypeError(f"{field}: {wrong_answer(value, 'a bytes object')}")
    return value


def _value(key: str, document: Document | None) -> ControlDocument | RoundDocument | None:
    if document is None:
        return None
    value = _bytes(document.value, "Document.value")
    return decode(value, ControlDocument) if key == CONTROL_KEY else decode(value, RoundDocument)

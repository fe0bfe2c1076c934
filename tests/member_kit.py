"""A member's rounds for tests that have no loop: calls that block, and all else written down."""

import threading
from collections import deque

from elastic_core import messages as m
from elastic_core.errors import RendezvousClosedError
from elastic_core.plugin_faults import Fault, PluginLabel, described
from elastic_core.rendezvous.coordinated import CoordinatedRendezvous
from elastic_core.system.clock import SYSTEM_CLOCK
from elastic_core.types import Round
from elastic_plugin_kit import sample_failure
from patience import patience


class Member:
    """An agent, as far as its rendezvous has one; a lock stands in for its loop.

    `on_question` is called with each `DecisionAsked`, under the lock.
    """

    def __init__(self, store, settings, *, on_question=lambda event: None):
        self.settings = settings
        self.backend = PluginLabel("backend", settings.backend)
        self.lines, self.fences, self.acts, self.questions = [], [], [], []
        self.turns, self.changed_s = True, 0.0
        self._on_question = on_question
        self._lock = threading.Condition()
        self._place = None
        self._failed = self._left = False
        self._changes = deque()
        self.rounds = CoordinatedRendezvous(store, settings).attach(self)

    # --- calls that block

    def join(self, within_s=15.0):
        with self._lock:
            self._place, self._failed = None, False
            self._changes.clear()
            self.ask(m.JoinRendezvous())
            over = self._lock.wait_for(lambda: self._place or self._failed or self._left, patience(within_s))
            assert over, f"no round within {within_s} s"
            if self._left:
                raise RendezvousClosedError("this node has left")
            if self._failed:
                raise self.rounds.error
            return self._place

    def watch(self, within_s=None):
        with self._lock:
            self.ask(m.WatchRound())
            self._lock.wait_for(lambda: self._changes, patience(10) if within_s is None else within_s)
            return self._changes.popleft() if self._changes else None

    def shutdown(self):
        with self._lock:
            self.ask(m.LeaveRendezvous(close=False))
            self._lock.wait_for(lambda: self._left, patience(10))
        return self.rounds.driver.join(patience(1.0))

    # --- requests

    def ask(self, *requests):
        with self._lock:
            for request in requests:
                self.rounds.post(request)

    def publish(self, decision, failure):
        self.ask(m.PublishDecision(decision=decision, failure=failure))

    def order_stop(self, reason, report):
        self.ask(m.OrderStop(failure=sample_failure(summary=reason), report=report))

    def report_stopped(self, report):
        self.ask(report)

    def answer(self, decision, failure, evidence, *, question):
        self.ask(m.PublishDecision(decision=decision, failure=failure, evidence=evidence, question=question))

    # --- what the rounds call

    def post(self, callback):
        with self._lock:
            callback()
            self._lock.notify_all()

    def call_later(self, delay_s, callback):
        timer = threading.Timer(delay_s, self.post, [callback])
        timer.daemon = True
        timer.start()
        return timer

    def take(self, event):
        match event:
            case m.RendezvousFailed():
                self._failed = True
            case m.RendezvousLeft():
                self._left = True
            case m.RoundChanged(change=change):
                self.changed_s = SYSTEM_CLOCK.monotonic_s()
                self._changes.append(change)
            case m.PrintLine(text=text):
                self.lines.append(text)
            case m.Fenced(until_s=until_s):
                self.fences.append(until_s)
            case m.SeatHeld(store=store, seat=seat):
                self.acts.append((store, seat))
            case m.DecisionAsked():
                self.questions.append(event)
                self._on_question(event)

    def raised(self, operation, error, fate=""):
        return Fault(f"{operation} raised {described(error)}{fate}", again=False)

    def turned_s(self):
        return SYSTEM_CLOCK.monotonic_s() if self.turns else 0.0

    def reserve_port(self, done):
        done(4711)

    def form(self, info, done):
        self._place = info
        round_ = Round(
            index=info.index, token=info.round_token, nonce=info.nonce, node_rank=info.rank,
            node_count=info.world_size, local_world_size=1, base_rank=info.rank, world_size=info.world_size,
            role="default", role_base_rank=0, role_world_size=info.world_size, master_addr=info.master_addr,
            master_port=info.master_port,
        )  # fmt: skip
        done(m.RoundFormed(round=round_, members=info.members))

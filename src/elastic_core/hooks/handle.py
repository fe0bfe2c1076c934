"""The run's handle: what a hook with the power `run` may ask and know, from any thread."""

from collections.abc import Callable, Mapping
from typing import Protocol

from elastic_core.hooks.arguments import checks_arguments
from elastic_core.reports import (
    AgentChannel,
    Answer,
    FailureReport,
    FieldValue,
    NodeSteps,
    RunningWorker,
)
from elastic_core.starters import RunTimer

Offer = Callable[[Mapping[str, str]], Answer]
"""Returns the answer to a request, by its parameters. Threading: the requester's; several requests may come at once."""


class RunActions(Protocol):
    """The agent, as the handles of its hooks have it. Threading: the supervisor's, unless said otherwise."""

    offers: dict[str, Offer]
    """What is offered. Threading: any."""
    run_dir: str
    """Where the run directory is. Threading: written on the supervisor's thread, read on any."""
    workers: tuple[RunningWorker, ...]
    """Those that run. Threading: as `run_dir`."""

    def report(self, hook: str, report: FailureReport) -> None:
        """Take a failure that a hook has found."""
        ...

    def restart(self, hook: str, reason: str, *, by_user: bool) -> None:
        """Restart all workers."""
        ...

    def drain(self, reason: str, grace_s: float | None) -> None:
        """Stop this node; an empty reason is not shown."""
        ...

    def publish(self, hook: str, fields: Mapping[str, FieldValue]) -> None:
        """Keep a hook's fields."""
        ...

    def keep_run_dir(self, because: str) -> None:
        """Let the run directory stay."""
        ...

    def store_place(self) -> str:
        """Return where the rendezvous store is. Threading: any."""
        ...

    def track_progress(self, hook: str, furthest_step: Callable[[], int | None]) -> None:
        """Read a hook's furthest step when a failure is examined. Threading: any."""
        ...

    def ask_steps(self) -> None:
        """Ask all nodes."""
        ...

    def report_steps(self, steps: NodeSteps) -> None:
        """Answer one."""
        ...

    def agree(self, topic: str, value: int) -> None:
        """State a number."""
        ...

    def release_stop(self, hook: str) -> None:
        """Let a planned stop go on."""
        ...

    def channel(self) -> AgentChannel | None:
        """Return how agents know each other. Threading: any."""
        ...


@checks_arguments
class RunHandle:
    """The run as a hook has it: `self.run`, from `on_agent_started` on.

    Nothing here blocks or waits: what is asked is done by the agent, soon, if it still makes sense then, and nothing
    once the run is over or the hook is off. An argument of a wrong type raises TypeError, and a value that can't be
    kept ValueError, in the call itself: neither is felt by the run. The agent keeps copies. Threading: any.
    """

    def __init__(
        self,
        name: str,
        actions: RunActions,
        *,
        post: Callable[[Callable[[], None]], None],
        notice: Callable[[str], None],
        call_later: Callable[[float, Callable[[], None]], object],
        call: Callable[[Callable[[], None]], Callable[[], bool]],
        record: Callable[[str, Mapping[str, object]], None],
    ) -> None:
        """Bind one hook's handle to the agent, which alone makes them.

        Args:
            name: The hook's.
            actions: Does what is asked.
            post: Runs a callback on the supervisor's thread, unless the run is over or the hook is off.
            notice: Shows people a line. Threading: any.
            call_later: Runs a callback on the supervisor's thread after so many seconds.
            call: Has a call of the hook's made on the thread of the hooks, and returns whether it is still due or under
                way. Threading: the supervisor's.
            record: Adds an event to the feed. Threading: any.
        """
        self._name = name
        self._actions = actions
        self._post = post
        self._notice = notice
        self._call_later = call_later
        self._call = call
        self._record = record

    def workers(self) -> tuple[RunningWorker, ...]:
        """Return this node's workers that run, by local rank."""
        return self._actions.workers

    def report(self, report: FailureReport) -> None:
        """Report a failure of workers, or of this node, as if it had been seen by the agent: the policy decides.

        Left alone while something else is being decided, or workers don't run: what is still true is reported again.
        """
        self._post(lambda: self._actions.report(self._name, report))

    def ask_restart(self, reason: str, *, by_user: bool = False) -> None:
        """Have all workers of the run started again; no restart is counted.

        Of one hook the agent obeys in at most 10 rounds of an hour, and ignores the rest with a line; `by_user` has no
        such limit.

        `by_user`: the hook passes on what somebody has asked it for, and people are told so; `reason` may be empty.
        """
        line = f"hook {self._name!r} asks for a restart" + (f" ({reason})" if reason.strip() else "")
        line = reason if by_user else line
        self._post(lambda: self._actions.restart(self._name, line, by_user=by_user))

    def ask_drain(self, reason: str, *, grace_s: float | None = None, by_user: bool = False) -> None:
        """Have this node stop its workers and leave, as SIGTERM does.

        `grace_s`: how long they have, None: as set. `by_user`: as for a restart.
        """
        line = f"hook {self._name!r} asks this node to leave" + (f": {reason}" if reason.strip() else "")
        line = reason if by_user else line
        self._post(lambda: self._actions.drain(line, grace_s))

    def notice(self, text: str, *, named: bool = True) -> None:
        """Show people one line, with the hook's name in front; not `named`: it says by itself whose it is.

        At most 1000 lines of one hook are shown within 10 s; one line then states how many more were left out. No other
        line is lost that was passed before `on_agent_stopped` has returned.
        """
        line = " ".join(text.split())
        self._notice(f"{self._name}: {line}" if named else line)

    def publish(self, fields: Mapping[str, FieldValue]) -> None:
        """Set what is shown of the hook in the incidents of this node; other hooks get it by the feed."""
        self._post(lambda: self._actions.publish(self._name, fields))

    def record(self, name: str, values: Mapping[str, object]) -> None:
        """Add an event to the feed, for the hooks that take it."""
        self._record(name, values)

    def keep_run_dir(self, because: str) -> None:
        """Have the run directory stay after a good end, too; `because` says why."""
        self._post(lambda: self._actions.keep_run_dir(because))

    def call_later(self, delay_s: float, call: Callable[[], None]) -> RunTimer:
        """Make a call after so many seconds, on the thread of the hooks, within their deadline."""
        later = _Later(call)
        self._post(lambda: self._start(later, delay_s))
        return later

    def _start(self, later: "_Later", delay_s: float) -> None:
        def make() -> None:
            if not later.cancelled:
                self._call(later.make)

        self._call_later(delay_s, make)

    def call_every(self, period_s: float, call: Callable[[], None]) -> RunTimer:
        """Make a call every so many seconds (0.01 or more), as `call_later`, until the timer is cancelled.

        It goes on after a call that raises, which is counted like any other, and after one that was left out because
        the hooks had too much to do. A call that is still waiting or under way is not made a second time.
        """
        later = _Later(call)
        self._post(lambda: self._repeat(later, period_s, lambda: False))
        return later

    def _repeat(self, later: "_Later", period_s: float, due: Callable[[], bool]) -> None:
        def look() -> None:
            if not later.cancelled:
                self._repeat(later, period_s, due if due() else self._call(later.make))

        self._call_later(period_s, look)

    def run_dir(self) -> str:
        """Return where the run directory is."""
        return self._actions.run_dir

    def offer(self, name: str, answer: Offer) -> None:
        """Offer an answer to requests of that name, as `elastic ctl` makes them; a later offer replaces an earlier one.

        An exception that it raises rejects the request, and its text is shown to the requester.
        """
        self._actions.offers[name] = answer

    def offers(self) -> Mapping[str, Offer]:
        """Return all that is offered in this agent, by hooks and by itself."""
        return dict(self._actions.offers)

    def store_place(self) -> str:
        """Return where the rendezvous store is, for people and without secrets; empty: there is none, or not yet."""
        return self._actions.store_place()

    def track_progress(self, furthest_step: Callable[[], int | None]) -> None:
        """Have the agent read the furthest step of this node's workers here; `None` means that it is not known.

        The furthest of all hooks' is the `progress` of a failure. Called: on the agent's thread when there is one; it
        returns at once.
        """
        self._actions.track_progress(self._name, furthest_step)

    def ask_steps(self) -> None:
        """Ask all nodes of the round how far their workers are: each gets `on_steps_asked`, then `on_steps_seen`.

        Where nobody else can be asked, `on_steps_seen` comes at once, of no node.
        """
        self._post(self._actions.ask_steps)

    def report_steps(self, steps: NodeSteps) -> None:
        """Report how far the workers of this node are: the answer to `on_steps_asked`."""
        self._post(lambda: self._actions.report_steps(steps))

    def agree(self, topic: str, value: int) -> None:
        """State this node's number about a topic: all that have stated one get the largest, by `on_agreed`.

        A topic, which begins with the hook's name, is agreed about once in a round, of which there may be 16; the first
        number stands. Waited for are all nodes of the round that have workers. Where nodes can't agree (`static`, one
        node), the own number is the answer.
        """
        self._post(lambda: self._actions.agree(topic, value))

    def release_stop(self) -> None:
        """Stop holding the planned stop (`Power.HOLDS`): this hook needs no more time."""
        self._post(lambda: self._actions.release_stop(self._name))

    def channel(self) -> AgentChannel | None:
        """Return how the agents of the run know each other; None: not yet, or they don't (`static`, one node)."""
        return self._actions.channel()


class _Later:
    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def make(self) -> None:
        if not self.cancelled:
            self._call()

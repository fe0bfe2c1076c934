"""The run's handle: how a hook with the power `run` reads and controls its run, from any thread."""

from collections.abc import Callable, Mapping
from typing import Protocol

from elastic_core.hooks.arguments import checks_arguments
from elastic_core.messages import AnswerNodes, AskNodes, ConcludeNodes, NodesRequest, StateNumber
from elastic_core.reports import AgentChannel, Answer, ChosenOption, FailureReport, FieldValue, RunningWorker
from elastic_core.starters import RunTimer

Offer = Callable[[Mapping[str, str]], Answer]
"""Returns the response to a request, given its parameters. Threading: the requester's thread; requests may overlap."""


class RunActions(Protocol):
    """The agent's side of the hooks' handles. Threading: the supervisor's, except where stated."""

    offers: dict[str, Offer]
    """The offers by name. Threading: any."""
    run_dir: str
    """The run directory. Threading: written on the supervisor's thread, read on any."""
    workers: tuple[RunningWorker, ...]
    """The running workers. Threading: as `run_dir`."""
    started: tuple[RunningWorker, ...]
    """The workers that were started last, also those that have ended. Threading: as `run_dir`."""

    def report(self, hook: str, report: FailureReport) -> None:
        """Process a failure that a hook reports."""

    def restart(self, hook: str, reason: str, *, by_user: bool) -> None:
        """Restart all workers."""

    def drain(self, reason: str, grace_s: float | None) -> None:
        """Stop this node; an empty reason is not printed."""

    def publish(self, hook: str, fields: Mapping[str, FieldValue]) -> None:
        """Replace a hook's fields."""

    def keep_run_dir(self, because: str) -> None:
        """Keep the run directory."""

    def record_dir(self) -> str:
        """Return the folder of files that stay after the run. Threading: any."""

    def options(self) -> tuple[ChosenOption, ...]:
        """Return the run's options. Threading: any."""

    def store_place(self) -> str:
        """Return the location of the rendezvous store. Threading: any."""

    def track_progress(self, hook: str, furthest_step: Callable[[], int | None]) -> None:
        """Call a hook's function for the furthest step when a failure is examined. Threading: any."""

    def exchange(self, request: NodesRequest | StateNumber) -> None:
        """Pass a request on to all nodes, or fulfil it if this node is alone."""

    def release_stop(self, hook: str) -> None:
        """Stop delaying a planned stop for a hook."""

    def channel(self) -> AgentChannel | None:
        """Return how the run's agents authenticate each other. Threading: any."""


@checks_arguments
class RunHandle:
    """A hook's handle to the run: `self.run`, from `on_agent_started` on.

    No method blocks or waits. The agent processes each request soon, if it still applies. After the run has ended or
    the hook is disabled, requests are ignored. An argument of a wrong type raises TypeError, and an invalid value
    ValueError, in the call itself; neither affects the run. The agent keeps copies of arguments. Threading: any.
    """

    def __init__(
        self,
        name: str,
        actions: RunActions,
        *,
        post: Callable[[Callable[[], None]], None],
        notice: Callable[[str], None],
        call_later: Callable[[float, Callable[[], None]], RunTimer],
        call: Callable[[Callable[[], None]], Callable[[], bool]],
        record: Callable[[str, Mapping[str, object]], None],
    ) -> None:
        # Only the agent makes handles. `post` and `call_later` run a callback on the supervisor's thread; `post` does
        # not if the run is over or the hook is disabled. `call`, for the supervisor's thread, runs a call of the hook
        # on the hooks' thread; it returns a function that returns whether the call is still waiting or running.
        # `notice` prints a line and `record` adds an event to the feed, on any thread.
        self._name = name
        self._actions = actions
        self._post = post
        self._notice = notice
        self._call_later = call_later
        self._call = call
        self._record = record

    def workers(self, *, ended: bool = False) -> tuple[RunningWorker, ...]:
        """Return this node's running workers, by local rank; with `ended`, all that were started last."""
        return self._actions.started if ended else self._actions.workers

    def report(self, report: FailureReport) -> None:
        """Report a failure of workers or of this node, as if the agent had found it: the policy decides.

        The report is ignored while another failure is decided, or no workers run. Repeat it if it still applies.
        """
        self._post(lambda: self._actions.report(self._name, report))

    def ask_restart(self, reason: str, *, by_user: bool = False) -> None:
        """Request a restart of all workers of the run; it does not count against the restart budget.

        The agent follows one hook's requests in at most 10 rounds per hour, and ignores further ones with a line. With
        `by_user`, the hook passes on a user's request: the limit does not apply, the printed line says so, and `reason`
        may be empty.
        """
        line = f"hook {self._name!r} requests a restart" + (f" ({reason})" if reason.strip() else "")
        line = reason if by_user else line
        self._post(lambda: self._actions.restart(self._name, line, by_user=by_user))

    def ask_drain(self, reason: str, *, grace_s: float | None = None, by_user: bool = False) -> None:
        """Request that this node stops its workers and leaves, as SIGTERM does.

        `grace_s` is the workers' grace period; `None` means the user's setting. `by_user` is as for a restart.
        """
        line = f"hook {self._name!r} asks this node to leave" + (f": {reason}" if reason.strip() else "")
        line = reason if by_user else line
        self._post(lambda: self._actions.drain(line, grace_s))

    def notice(self, text: str, *, named: bool = True) -> None:
        """Print one line for users, with the hook's name in front. With `named=False`, the name is left out.

        At most 1000 lines of one hook are printed within 10 s; one line then states how many more were left out. All
        other lines that were passed before `on_agent_stopped` has returned are printed.
        """
        line = " ".join(text.split())
        self._notice(f"{self._name}: {line}" if named else line)

    def publish(self, fields: Mapping[str, FieldValue]) -> None:
        """Replace the fields that this node's incidents show for the hook; other hooks get them by the feed."""
        self._post(lambda: self._actions.publish(self._name, fields))

    def record(self, name: str, values: Mapping[str, object]) -> None:
        """Add an event to the feed, for the hooks that receive it."""
        self._record(name, values)

    def keep_run_dir(self, because: str) -> None:
        """Keep the run directory even if the run succeeds; `because` is the reason."""
        self._post(lambda: self._actions.keep_run_dir(because))

    def call_later(self, delay_s: float, call: Callable[[], None]) -> RunTimer:
        """Call a function once after `delay_s` seconds, on the hooks' thread, within their deadline."""
        later = _Later(call)

        def make() -> None:
            self._call(later.make)

        self._post(lambda: later.wait_for(self._call_later(delay_s, make)))
        return later

    def call_every(self, period_s: float, call: Callable[[], None]) -> RunTimer:
        """Call a function every `period_s` seconds (0.01 or more), as `call_later`, until the timer is cancelled.

        The timer continues after a call that raises (the exception is counted), and after one that was skipped because
        the hooks were overloaded. While a call is waiting or running, no second one is made.
        """
        later = _Later(call)
        self._post(lambda: self._repeat(later, period_s, lambda: False))
        return later

    def _repeat(self, later: "_Later", period_s: float, due: Callable[[], bool]) -> None:
        def look() -> None:
            if not later.cancelled:
                self._repeat(later, period_s, due if due() else self._call(later.make))

        later.wait_for(self._call_later(period_s, look))

    def run_dir(self) -> str:
        """Return the run directory."""
        return self._actions.run_dir

    def record_dir(self) -> str:
        """Return the folder for small files about this run that stay after the run directory is removed.

        The first call makes it, beside the run's record. It is removed with the record, after 200 later runs. Empty if
        no place is writable.
        """
        return self._actions.record_dir()

    def options(self) -> tuple[ChosenOption, ...]:
        """Return all options of this run that `elastic run --dry-run -v` shows, with masked secrets."""
        return self._actions.options()

    def offer(self, name: str, answer: Offer) -> None:
        """Answer requests of that name, such as those of `elastic ctl`; a later offer replaces an earlier one.

        If `answer` raises an exception, the request is rejected, and the requester sees its text.
        """
        self._actions.offers[name] = answer

    def offers(self) -> Mapping[str, Offer]:
        """Return all offers in this agent: those of hooks and the agent's own."""
        return dict(self._actions.offers)

    def store_place(self) -> str:
        """Return the rendezvous store's location for users, without secrets. Empty if there is none, or not yet."""
        return self._actions.store_place()

    def track_progress(self, furthest_step: Callable[[], int | None]) -> None:
        """Set the function that returns the furthest step of this node's workers. `None` means not known.

        The maximum of all hooks is the `progress` of a failure. Called: on the agent's thread, for each failure; it
        must return at once.
        """
        self._actions.track_progress(self._name, furthest_step)

    def ask_nodes(self, topic: str, *, within_s: float = 1.0) -> None:
        """Ask all nodes of the round about a topic, while workers run: each node gets `on_nodes_asked`.

        The topic's name begins with the hook's name. The leader's hook gets the answers by `on_answers_gathered` when
        all nodes have answered, or after `within_s` seconds (0 to 60). All nodes get its conclusion by `on_concluded`.
        A round has one open question: a request with the same topic joins it, and one with another topic waits. The end
        of the round ends all questions, and there may be no conclusion: use a time limit of your own. Where nodes
        cannot communicate (`static`, one node), the same methods are called with this node's answer alone.
        """
        self._post(lambda: self._actions.exchange(AskNodes(topic=topic, within_s=within_s)))

    def answer_nodes(self, serial: int, data: bytes) -> None:
        """Answer a question for this node, with at most 16 KiB; the last answer before the time is over counts."""
        self._post(lambda: self._actions.exchange(AnswerNodes(serial=serial, data=data)))

    def conclude_nodes(self, serial: int, data: bytes) -> None:
        """Conclude the answers of `on_answers_gathered` for all nodes, with at most 16 KiB; the first one counts."""
        self._post(lambda: self._actions.exchange(ConcludeNodes(serial=serial, data=data)))

    def agree(self, topic: str, value: int) -> None:
        """Submit this node's number for a topic: all nodes that submit one get the largest, by `on_agreed`.

        The topic's name begins with the hook's name. A round has at most 16 topics, each is agreed on once, and a
        node's first number counts. The result follows when all nodes of the round that have workers have submitted.
        Where nodes cannot agree (`static`, one node), the result is this node's number.
        """
        self._post(lambda: self._actions.exchange(StateNumber(topic=topic, value=value)))

    def release_stop(self) -> None:
        """Stop delaying the planned stop (`Power.HOLDS`): this hook needs no more time."""
        self._post(lambda: self._actions.release_stop(self._name))

    def channel(self) -> AgentChannel | None:
        """Return how the run's agents authenticate each other. `None` if they do not (`static`, one node)."""
        return self._actions.channel()


class _Later:
    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self.cancelled = False
        self._timer: RunTimer | None = None

    def wait_for(self, timer: RunTimer) -> None:
        self._timer = timer

    def cancel(self) -> None:
        self.cancelled = True
        if self._timer is not None:
            self._timer.cancel()  # else the loop holds the calls of all earlier rounds until they are due

    def make(self) -> None:
        if not self.cancelled:
            self._call()

"""A run's handle for tests of hooks: it keeps what it was asked, and makes calls when time is said to pass."""

from collections.abc import Callable, Mapping

from elastic_core.api import FailureReport, RunHandle, RunningWorker
from elastic_core.api.feed import AgentChannel, ChosenOption, Offer, checks_arguments

FieldValue = str | int | float | bool | None
"""What a hook may publish."""


class FakeTimer:
    """A call that is due at a time of the fake run's; `period_s`: after so many seconds again, None: once only."""

    def __init__(self, at_s: float, call: Callable[[], None], period_s: float | None = None) -> None:
        self.at_s = at_s
        self.call = call
        self.period_s = period_s
        self.cancelled = False

    def cancel(self) -> None:
        """Forget it."""
        self.cancelled = True


@checks_arguments
class FakeRun(RunHandle):
    """A handle without a run: set it as `run` of a hook with `Power.RUN`. It checks arguments as the agent's own does.

    Args:
        workers: Those that run; replace `running` to have others.
    """

    def __init__(self, workers: tuple[RunningWorker, ...] = ()) -> None:
        self.running = workers
        self.ended: tuple[RunningWorker, ...] = ()
        """Those that were started last, and run no more."""
        self.now_s = 0.0
        self.reports: list[FailureReport] = []
        self.restarts: list[str] = []
        """The reasons."""
        self.drains: list[tuple[str, float | None]] = []
        """Reasons and grace periods."""
        self.offered: dict[str, Offer] = {}
        """By name; put others' there, too."""
        self.place = ""
        """Where the rendezvous store is."""
        self.directory = ""
        """The run directory."""
        self.record_directory = ""
        """The folder of files that stay after the run."""
        self.chosen: tuple[ChosenOption, ...] = ()
        """The options of the run."""
        self.notices: list[str] = []
        self.fields: dict[str, FieldValue] = {}
        self.events: list[tuple[str, dict[str, object]]] = []
        """What was added to the feed: names and values."""
        self.kept_because: list[str] = []
        """Why the run directory is to stay."""
        self.timers: list[FakeTimer] = []
        self.furthest_step: Callable[[], int | None] = lambda: None
        """What the hook has progress read by."""
        self.questions: list[str] = []
        """The topics about which all nodes were asked."""
        self.answers: list[tuple[int, bytes]] = []
        """This node's answers: the numbers of the questions, and the data."""
        self.conclusions: list[tuple[int, bytes]] = []
        """The conclusions: the numbers of the questions, and the data."""
        self.stated: dict[str, int] = {}
        """The numbers that a hook has stated, by topic."""
        self.stops_released = 0
        """How often a planned stop was held no longer."""
        self.agents: AgentChannel | None = None
        """How the agents of the run know each other."""

    def workers(self, *, ended: bool = False) -> tuple[RunningWorker, ...]:
        """Return those that run; with `ended`, all that were started last."""
        started = sorted((*self.running, *self.ended), key=lambda each: each.local_rank)
        return tuple(started) if ended else self.running

    def report(self, report: FailureReport) -> None:
        """Keep a report."""
        self.reports.append(report)

    def ask_restart(self, reason: str, *, by_user: bool = False) -> None:
        """Keep a reason."""
        self.restarts.append(reason)

    def ask_drain(self, reason: str, *, grace_s: float | None = None, by_user: bool = False) -> None:
        """Keep a reason."""
        self.drains.append((reason, grace_s))

    def notice(self, text: str, *, named: bool = True) -> None:
        """Keep a line."""
        self.notices.append(text)

    def publish(self, fields: Mapping[str, FieldValue]) -> None:
        """Keep fields, in place of those before."""
        self.fields = dict(fields)

    def record(self, name: str, values: Mapping[str, object]) -> None:
        """Keep an event."""
        self.events.append((name, dict(values)))

    def keep_run_dir(self, because: str) -> None:
        """Keep a reason."""
        self.kept_because.append(because)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> FakeTimer:
        """Keep a call for `pass_time`."""
        timer = FakeTimer(self.now_s + delay_s, call)
        self.timers.append(timer)
        return timer

    def call_every(self, period_s: float, call: Callable[[], None]) -> FakeTimer:
        """Keep a call for every so many seconds of `pass_time`."""
        timer = FakeTimer(self.now_s + period_s, call, period_s)
        self.timers.append(timer)
        return timer

    def run_dir(self) -> str:
        """Return the directory."""
        return self.directory

    def record_dir(self) -> str:
        """Return the folder that the test has set."""
        return self.record_directory

    def options(self) -> tuple[ChosenOption, ...]:
        """Return the options that the test has set."""
        return self.chosen

    def offer(self, name: str, answer: Offer) -> None:
        """Keep an offer."""
        self.offered[name] = answer

    def offers(self) -> Mapping[str, Offer]:
        """Return what is offered."""
        return dict(self.offered)

    def store_place(self) -> str:
        """Return the store's place."""
        return self.place

    def track_progress(self, furthest_step: Callable[[], int | None]) -> None:
        """Keep what progress is read by."""
        self.furthest_step = furthest_step

    def ask_nodes(self, topic: str, *, within_s: float = 1.0) -> None:
        """Keep a topic; a test calls `on_nodes_asked` for its answer."""
        self.questions.append(topic)

    def answer_nodes(self, serial: int, data: bytes) -> None:
        """Keep an answer."""
        self.answers.append((serial, data))

    def conclude_nodes(self, serial: int, data: bytes) -> None:
        """Keep a conclusion."""
        self.conclusions.append((serial, data))

    def agree(self, topic: str, value: int) -> None:
        """Keep a number; a test answers with `Agreed`."""
        self.stated[topic] = value

    def release_stop(self) -> None:
        """Count a planned stop that is held no longer."""
        self.stops_released += 1

    def channel(self) -> AgentChannel | None:
        """Return what the test has set."""
        return self.agents

    def pass_time(self, seconds: float) -> None:
        """Make the calls that are due within so many seconds, in order, each at its time.

        What one of them raises is raised here; a repeated one is due again all the same.
        """
        end_s = self.now_s + seconds
        while due := [timer for timer in self.timers if timer.at_s <= end_s and not timer.cancelled]:
            timer = min(due, key=lambda each: each.at_s)
            self.now_s = max(self.now_s, timer.at_s)
            if timer.period_s is None:
                self.timers.remove(timer)
            else:
                timer.at_s = self.now_s + timer.period_s
            timer.call()
        self.now_s = end_s

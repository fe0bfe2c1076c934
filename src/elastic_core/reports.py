"""What a hook says and knows of a run: failures that it has found, workers that run, and the events of the feed."""

from collections.abc import Mapping

from elastic_core.types import ErrorRecord, FailureClass, Record

FieldValue = str | int | float | bool | None


class RunEvent(Record, frozen=True, kw_only=True):
    """One thing that happened in a run, for hooks that take its feed.

    `at_s` is monotonic, `at_ns` since the Unix epoch. `source`: the hook that has added it; empty: the agent.
    """

    name: str
    at_s: float
    at_ns: int
    values: Mapping[str, object] = {}
    source: str = ""


class Phase(Record, frozen=True, kw_only=True):
    """A phase of the agent that is over. `well`: what it was for was reached."""

    name: str
    took_s: float
    well: bool


class RunningWorker(Record, frozen=True, kw_only=True):
    """One worker of this node that runs; paths are empty where there is no such file."""

    local_rank: int
    global_rank: int
    pid: int
    stdout: str = ""
    stderr: str = ""
    error_file: str = ""
    """Where it writes what it fails of."""


class OpenSection(Record, frozen=True, kw_only=True):
    """A section that a worker is in. `serial` is its own among all of that process."""

    serial: int
    name: str
    since_s: float
    limit_s: float


class WorkerBeats(Record, frozen=True, kw_only=True):
    """What a worker has said of itself by `heartbeat` and `section`; times on its monotonic clock.

    `owner`: the pid of the process that beats, the worker or one that it has started; 0: none has said that it will.
    """

    owner: int = 0
    beat_s: float | None = None
    step: int | None = None
    sections: tuple[OpenSection, ...] = ()
    stack_bytes: int = 0
    """So many bytes it has written because it was asked for its stacks, which is no sign of life."""
    fault: str = ""
    """Why nothing can be known of it."""


class WorkerFault(Record, frozen=True, kw_only=True):
    """One worker that is to blame for a failure, while it still runs.

    `quiet_s`: how long ago it was last seen well, which is when it failed. `error`: what is known of where it stands.
    `signal`: what it is sent, if the report is taken, before anything is decided; 0: nothing.
    """

    local_rank: int
    quiet_s: float = 0.0
    error: ErrorRecord | None = None
    signal: int = 0


class Absence(Record, frozen=True, kw_only=True):
    """Why a node is left out of rounds though it is there.

    `by`: a hook of its own with its distribution, or the run's policy. `for_s` counts from when it was said: until the
    hook is asked again, or the policy's time is over; None: until the policy's next decision.
    """

    by: str
    reason: str
    for_s: float | None = None
    refused: bool = True
    """A hook refuses; else a policy has left the node out."""

    @property
    def text(self) -> str:
        """The absence as part of a sentence about the node."""
        if self.refused:
            return f"{self.by} refused: {self.reason}"
        time = "until its next decision" if self.for_s is None else f"for {self.for_s:g} s"
        return f"left out {time} by {self.by}: {self.reason}"


class FailureReport(Record, frozen=True, kw_only=True):
    """A failure that a hook has found while workers run, with its evidence.

    `workers` are those to blame, the first cause in front; empty: this node is. Not `retryable`: another try on this
    node would meet the same. `fields` are for the incident; `hang` among them has the shape that incident.json has.
    """

    summary: str
    failure_class: FailureClass = FailureClass.HEALTH_CHECK
    workers: tuple[WorkerFault, ...] = ()
    retryable: bool = True
    fields: Mapping[str, object] = {}


class WorkerStack(Record, frozen=True, kw_only=True):
    """The Python stacks of one worker as text, all threads; empty: it did not answer. `source`: who has written it."""

    text: str = ""
    source: str = ""
    frames: tuple[tuple[str, int, str, str], ...] = ()
    """The main thread's, outermost first: file, line, function, and the source's line, which is empty here."""
    user_frame: int = -1
    """Which of them is the innermost line of the user's own code; -1: none is, all are of libraries."""

    @property
    def place(self) -> str:
        """Return where the worker is in the user's own code, file and line; empty where there are no frames."""
        if not self.frames:
            return ""
        file, line, *_ = self.frames[self.user_frame]
        return f"{file.rpartition('/')[2]}:{line}"


class Answer(Record, frozen=True, kw_only=True):
    """What somebody who asks the agent gets."""

    content: str
    content_type: str = "text/plain"

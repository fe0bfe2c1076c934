"""What it takes to start one worker."""

from elastic_core.types import Record


class StreamPlan(Record, frozen=True, kw_only=True):
    """Where one of a worker's output streams goes.

    `file` gets the raw bytes. `console`: the bytes also reach our own stream, line by line with `prefix`. Neither: with
    `inherit` the worker has our stream itself, else /dev/null. A file alone is opened by the worker's own descriptor:
    the agent touches no byte, unless a size limit makes it rotate the file.
    """

    file: str | None = None
    console: bool = False
    inherit: bool = True
    prefix: str = ""
    filters: tuple[str, ...] = ()
    """Lines of a stream for the console that hold one of these also go to `filtered_file`, if there is one."""
    filtered_file: str | None = None
    max_bytes: int | None = None
    """`file` is rotated when it would have more than this; None: never."""
    backups: int = 0
    """How many rotated files stay."""

    @property
    def through_agent(self) -> bool:
        """Whether the worker writes into a pipe of ours."""
        return self.console or (self.file is not None and self.max_bytes is not None)


class WorkerLaunch(Record, frozen=True, kw_only=True):
    """One worker process: complete command and environment.

    With a `function` the process calls that, and whoever does so starts it: of `argv` only the interpreter counts then,
    the rest is for people.
    """

    local_rank: int
    global_rank: int
    argv: tuple[str, ...]
    env: dict[str, str]
    stdout: StreamPlan = StreamPlan()
    stderr: StreamPlan = StreamPlan()
    foreground: bool = False
    """Keep the terminal: same session and foreground process group, inherited stdin (`--debug-rank`)."""
    function: str = ""
    """Its name; empty: the process is the program `argv`."""
    cpus: frozenset[int] | None = None
    """The processors that it may run on; None: as inherited."""


class WorkerPaths(Record, frozen=True, kw_only=True):
    """The files of one worker in one round."""

    error_file: str
    fault_file: str
    beat_file: str = ""
    """What it beats into; empty: it is not asked to."""
    stdout: StreamPlan = StreamPlan()
    stderr: StreamPlan = StreamPlan()

"""What it takes to start one worker."""

from elastic_core.types import Record


class StreamPlan(Record, frozen=True, kw_only=True):
    """Where one of a worker's output streams goes.

    `file` gets the raw bytes. `console`: the bytes also reach our own stream, line by line with `prefix`. Neither: with
    `inherit` the worker has our stream itself, else /dev/null. A file alone is opened by the worker's own descriptor:
    the agent touches no byte.
    """

    file: str | None = None
    console: bool = False
    inherit: bool = True
    prefix: str = ""


class WorkerLaunch(Record, frozen=True, kw_only=True):
    """One worker process: complete command and environment."""

    local_rank: int
    global_rank: int
    argv: tuple[str, ...]
    env: dict[str, str]
    stdout: StreamPlan = StreamPlan()
    stderr: StreamPlan = StreamPlan()
    foreground: bool = False
    """Keep the terminal: same session and foreground process group, inherited stdin (`--debug-rank`)."""

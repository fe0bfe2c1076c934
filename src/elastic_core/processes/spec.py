"""The description of one worker to start: its command, its files, and its variables."""

from collections.abc import Callable, Mapping
from typing import Final

from elastic_core.types import Record, Round


class StreamPlan(Record, frozen=True, kw_only=True):
    """The destination of one of a worker's output streams.

    `file` receives the raw bytes. With `console`, the bytes also reach our own stream, line by line with `prefix`. With
    neither, the worker has our stream itself if `inherit`, else /dev/null. A file alone is opened for the worker's own
    descriptor: the agent reads no output, unless a size limit makes it rotate the file.
    """

    file: str | None = None
    console: bool = False
    inherit: bool = True
    prefix: str = ""
    filters: tuple[str, ...] = ()
    """Lines of a console stream that contain one of these also go to `filtered_file`, if there is one."""
    filtered_file: str | None = None
    max_bytes: int | None = None
    """The size at which `file` is rotated. `None` means no rotation."""
    backups: int = 0
    """How many rotated files are kept."""

    @property
    def through_agent(self) -> bool:
        """Whether the worker writes to a pipe of the agent."""
        return self.console or (self.file is not None and self.max_bytes is not None)


class WorkerLaunch(Record, frozen=True, kw_only=True):
    """One worker process: its complete command and environment.

    With `function`, a starter starts a process that calls it. Only the interpreter in `argv` counts then; the rest is
    for users.
    """

    local_rank: int
    global_rank: int
    argv: tuple[str, ...]
    env: dict[str, str]
    stdout: StreamPlan = StreamPlan()
    stderr: StreamPlan = StreamPlan()
    foreground: bool = False
    """Whether it keeps the terminal: same session and foreground process group, inherited stdin (`--debug-rank`)."""
    function: str = ""
    """The function's name. Empty if the process runs the program `argv`."""
    cpus: frozenset[int] | None = None
    """The processors on which it may run. `None` means inherited."""


class WorkerPaths(Record, frozen=True, kw_only=True):
    """The files of one worker in one round."""

    error_file: str
    """Empty, like `fault_file`, if the run directory was removed and cannot be made again."""
    fault_file: str
    stdout: StreamPlan = StreamPlan()
    stderr: StreamPlan = StreamPlan()


class Place(Record, frozen=True, kw_only=True):
    """A worker's place in its run, from which its variables are made."""

    run_id: str
    node_id: str
    incarnation: str
    max_restarts: int
    round: Round
    local_rank: int
    restart_count: int
    membership_changes: int
    use_agent_store: bool
    virtual_local_rank: bool
    """Whether it sees one device only, as if it were the first worker."""
    files: WorkerPaths
    hooks: bool
    """Whether its interpreter records its failure."""
    startup: tuple[str, ...] = ()
    """Functions that its interpreter calls before its script."""


Make = Callable[[Place], str]

_LASTING: Final[Mapping[str, Make]] = {
    "LOCAL_RANK": lambda p: "0" if p.virtual_local_rank else str(p.local_rank),
    "ROLE_NAME": lambda p: p.round.role,
    "LOCAL_WORLD_SIZE": lambda p: str(p.round.local_world_size),
    "TORCHELASTIC_MAX_RESTARTS": lambda p: str(p.max_restarts),
    "TORCHELASTIC_RUN_ID": lambda p: p.run_id,
    "ELASTIC_NODE_ID": lambda p: p.node_id,
    "ELASTIC_INCARNATION": lambda p: p.incarnation,
}
_OF_ROUND: Final[Mapping[str, Make]] = {
    "RANK": lambda p: str(p.round.global_rank(p.local_rank)),
    "GROUP_RANK": lambda p: str(p.round.node_rank),
    "ROLE_RANK": lambda p: str(p.round.role_base_rank + p.local_rank),
    "WORLD_SIZE": lambda p: str(p.round.world_size),
    "GROUP_WORLD_SIZE": lambda p: str(p.round.node_count),
    "ROLE_WORLD_SIZE": lambda p: str(p.round.role_world_size),
    "MASTER_ADDR": lambda p: p.round.master_addr,
    "MASTER_PORT": lambda p: str(p.round.master_port),
    "TORCHELASTIC_RESTART_COUNT": lambda p: str(p.restart_count),
    "TORCHELASTIC_USE_AGENT_STORE": lambda p: str(p.use_agent_store),
    "TORCHELASTIC_ERROR_FILE": lambda p: p.files.error_file,
    "ELASTIC_ROUND": lambda p: str(p.round.index),
    "ELASTIC_MEMBERSHIP_CHANGES": lambda p: str(p.membership_changes),
}
# Left out if empty. Workers never inherit the agent's own.
_OF_ROUND_IF_ANY: Final[Mapping[str, Make]] = {
    "ELASTIC_WORKER_HOOKS": lambda p: "1" if p.hooks else "",
    "ELASTIC_FAULT_FILE": lambda p: p.files.fault_file if p.hooks else "",
    "ELASTIC_STARTUP": lambda p: ",".join(p.startup) if p.hooks else "",
}

ROUND_VARIABLES: Final = frozenset(_OF_ROUND) | frozenset(_OF_ROUND_IF_ANY)
"""Variables that differ between a worker's rounds. No library reads them at its import; a standby lacks them."""
PLACE_VARIABLES: Final = ROUND_VARIABLES | frozenset(_LASTING)
AGENTS_OWN: Final = frozenset(_OF_ROUND_IF_ANY) | {"ELASTIC_KEEP", "ELASTIC_WORKER_PROGRAM"}
"""Variables that no process inherits from an agent: an agent's own ELASTIC_KEEP would keep all its processes."""


def without_agents_own(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that an agent's processes must not inherit."""
    return {name: value for name, value in environment.items() if name not in AGENTS_OWN}


def place_variables(place: Place) -> dict[str, str]:
    """Return the variables that describe a worker's place: those of torch 2.13, and ours."""
    variables = {name: make(place) for name, make in (*_LASTING.items(), *_OF_ROUND.items())}
    for name, make in _OF_ROUND_IF_ANY.items():
        if value := make(place):
            variables[name] = value
    return variables

"""The resolved settings of a run, which the command line or a library call passes to the launcher."""

from collections.abc import Iterator, Mapping
from typing import Any

from elastic_core.agent.parts import DEFAULT_SIGNALS, StopSettings
from elastic_core.options.choices import Draft
from elastic_core.options.output_options import OutputSettings
from elastic_core.options.worker_options import WorkerSettings
from elastic_core.starters import WorkerCall
from elastic_core.types import PolicySettings, Record, RendezvousSettings

__all__ = ["DEFAULT_SIGNALS", "Entrypoint", "Resolution", "RunSettings", "finish"]


class Entrypoint(Record, frozen=True, kw_only=True):
    """The workers' command.

    `argv` is complete (the interpreter first, if there is one); `${local_rank}` in it is replaced for each worker.
    `script` is the file that must exist before the run starts (`None`: not a file). `python` is whether worker hooks
    can work.
    """

    argv: tuple[str, ...]
    name: str
    """The script, module or program as typed, for users."""
    script: str | None = None
    module: str | None = None
    python: bool = True
    function: WorkerCall | None = None
    """The function that workers call instead of a program; `argv` is then the interpreter and a name for users."""


class RunSettings(Record, frozen=True, kw_only=True):
    """The resolved settings of one run on this node, a record for each part. Times are in seconds."""

    entrypoint: Entrypoint
    nodes: RendezvousSettings
    """The settings as chosen, without values that only the running agent has, such as its incarnation."""
    rdzv_conf: Mapping[str, str] = {}
    """The options of the rendezvous backend, as typed."""
    restarts: PolicySettings = PolicySettings(name="intensity")
    """The settings as chosen, without the values of `nodes`."""
    join_timeout_s: float = 600.0
    """How long a node waits without a round, for backends without a `join_timeout` of their own."""
    policy_conf: Mapping[str, str] = {}
    """The options of the failure handler, as typed."""
    workers: WorkerSettings = WorkerSettings()
    stops: StopSettings = StopSettings()
    output: OutputSettings = OutputSettings()
    disabled_plugins: tuple[str, ...] = ()
    hooks: Mapping[str, Mapping[str, str]] = {}
    """Options of hooks by name, as typed (`-p`). A hook that is given by place is turned on by it."""
    hook_options: Mapping[str, str | int | float | bool | tuple[str | int | float | bool, ...] | None] = {}
    """The given options of hooks, by name. Each chooses its hook."""
    notices: tuple[str, ...] = ()
    """Lines that the user sees before the workers start, such as options without effect."""


class Resolution(Record, frozen=True, kw_only=True):
    """Settings, and the origin of each field's value for users, by path such as `nodes.spares`."""

    settings: RunSettings
    origins: Mapping[str, str]

    def values(self) -> Iterator[tuple[str, object]]:
        """Yield each field's path and value."""
        for name in self.settings.__struct_fields__:
            value = getattr(self.settings, name)
            if isinstance(value, Record) and name != "entrypoint":
                yield from ((f"{name}.{field}", getattr(value, field)) for field in value.__struct_fields__)
            else:
                yield name, value


def finish(draft: Draft) -> Resolution:
    """Return the settings of a draft."""
    whole: dict[str, Any] = {"notices": tuple(draft.notices)}
    parts: dict[str, dict[str, Any]] = {}
    for path, value in draft.fields.items():
        part, _, field = path.rpartition(".")
        (parts.setdefault(part, {}) if part else whole)[field] = value
    for part, fields in parts.items():
        whole[part] = RunSettings.__annotations__[part](**fields)
    return Resolution(settings=RunSettings(**whole), origins=dict(draft.origins))

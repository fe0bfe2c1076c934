"""The options of a run, resolved: what the command line (or a caller of the library) hands to the launcher."""

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
    """What each worker executes.

    `argv` is complete (interpreter first where there is one); `${local_rank}` in it is replaced per worker. `script` is
    the file that must exist and be readable before anything starts (None: not a file), `python` whether our worker
    hooks can work in it.
    """

    argv: tuple[str, ...]
    name: str
    """For people: the script, module or program as typed."""
    script: str | None = None
    module: str | None = None
    python: bool = True
    function: WorkerCall | None = None
    """What workers call instead of running a program; `argv` is then the interpreter and a name for people."""


class RunSettings(Record, frozen=True, kw_only=True):
    """One run on this node, every value resolved: a record for each part of it. Times in seconds."""

    entrypoint: Entrypoint
    nodes: RendezvousSettings
    """As chosen: what only the running agent knows of itself (its incarnation, say) is not in it."""
    rdzv_conf: Mapping[str, str] = {}
    """The options of the rendezvous backend, as typed."""
    restarts: PolicySettings = PolicySettings(name="intensity")
    """As chosen: what `nodes` has is not filled in."""
    join_timeout_s: float = 600.0
    """How long a node waits without a round, where no store of the rendezvous has its own word for it."""
    policy_conf: Mapping[str, str] = {}
    """The options of the failure handler, as typed."""
    workers: WorkerSettings = WorkerSettings()
    stops: StopSettings = StopSettings()
    output: OutputSettings = OutputSettings()
    disabled_plugins: tuple[str, ...] = ()
    hooks: Mapping[str, Mapping[str, str]] = {}
    """Options of hooks by name, as typed (`-p`); one that is named by its place is on by it."""
    hook_options: Mapping[str, str | int | float | bool | tuple[str | int | float | bool, ...] | None] = {}
    """Options that hooks bring, by name: those that were given; each chooses its hook."""
    notices: tuple[str, ...] = ()
    """Lines that the user must see before the workers start (what has no effect)."""


class Resolution(Record, frozen=True, kw_only=True):
    """Settings, and where each field's value is from, for people: by path, such as `nodes.spares`."""

    settings: RunSettings
    origins: Mapping[str, str]

    def values(self) -> Iterator[tuple[str, object]]:
        """Return each field with its value, by path."""
        for name in self.settings.__struct_fields__:
            value = getattr(self.settings, name)
            if isinstance(value, Record) and name != "entrypoint":
                yield from ((f"{name}.{field}", getattr(value, field)) for field in value.__struct_fields__)
            else:
                yield name, value


def finish(draft: Draft) -> Resolution:
    """Return the settings that were collected."""
    whole: dict[str, Any] = {"notices": tuple(draft.notices)}
    parts: dict[str, dict[str, Any]] = {}
    for path, value in draft.fields.items():
        part, _, field = path.rpartition(".")
        (parts.setdefault(part, {}) if part else whole)[field] = value
    for part, fields in parts.items():
        whole[part] = RunSettings.__annotations__[part](**fields)
    return Resolution(settings=RunSettings(**whole), origins=dict(draft.origins))

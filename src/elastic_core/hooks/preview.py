"""The changes that hooks would make to the start of workers, for `--dry-run`: computed without a run."""

from collections.abc import Sequence

from elastic_core.hooks.handler import notices_of
from elastic_core.hooks.launches import CheckedChanges
from elastic_core.hooks.members import NamedHook
from elastic_core.moments import LaunchChange, Launches, Power, Refuse, WorkersStarting, merged_changes
from elastic_core.plugin_faults import PluginFaults
from elastic_core.types import Record


class Preview(Record, frozen=True, kw_only=True):
    """The changes and the hook that chose the processors, by local rank, and lines for users."""

    changes: tuple[LaunchChange, ...]
    bound_by: tuple[str, ...]
    lines: tuple[str, ...]
    hosting: bool = False
    """Whether a hook hosts the server at MASTER_PORT."""


def preview(hooks: Sequence[NamedHook], moment: WorkersStarting) -> Preview:
    """Return the changes of all hooks that may change launches."""
    nproc = moment.round.local_world_size
    changes, bound_by = [LaunchChange()] * nproc, [""] * nproc
    lines: list[str] = []
    faults = PluginFaults()
    for named in hooks:
        lines += notices_of(named.hook)
        if Power.LAUNCHES not in named.hook.powers:
            continue
        try:
            answer = named.hook.on_workers_starting(moment)
        except Exception as err:  # noqa: BLE001  # plugin code: printed, as in a run
            fault = faults.raised(named.label, "on_workers_starting", err)
            lines.append(f"{named.label}: on_workers_starting raised {fault.text}")
            continue
        if isinstance(answer, Refuse):
            lines.append(f"hook {named.name!r} would refuse: {answer.reason}")
        elif isinstance(answer, Launches):
            checked = CheckedChanges(answer, nproc)
            lines += [f"hook {named.name!r} {fault}" for fault in checked.faults]
            for rank, change in checked.by_rank.items():
                changes[rank] = merged_changes((changes[rank], change))
                bound_by[rank] = bound_by[rank] if change.processors is None else named.name
    hosting = any(Power.HOSTS in named.hook.powers and named.hook.hosting for named in hooks)
    return Preview(changes=tuple(changes), bound_by=tuple(bound_by), lines=tuple(lines), hosting=hosting)

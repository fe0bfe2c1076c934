"""The options about standby workers."""

from typing import Final

from elastic_core.options.choices import Draft
from elastic_core.options.option import OptionRow, Section, row
from elastic_core.options.settings import Entrypoint
from elastic_core.options.values import integer, node_range

STANDBY: Final[tuple[OptionRow, ...]] = (
    row(
        Section.RESTARTS,
        "standby",
        None,
        "Keep a spare interpreter beside each worker, with torch imported, that takes its place at a restart: workers "
        "are back without the seconds that the import takes. Costs memory: about 160 MiB for each worker with a CPU "
        "build of torch.",
        field="workers.standby",
    ),
    row(
        Section.RESTARTS,
        "standby-imports",
        "MODULES",
        "What standby workers import ahead; nothing that starts threads, opens a device, or looks at its rank.",
        default="torch,torch.distributed",
        field="workers.standby_imports",
    ),
)


def take_standby(draft: Draft, entrypoint: Entrypoint) -> None:
    """Settle whether workers have a spare, and say where that could never be of use."""
    choices = draft.choices
    imports = tuple(name.strip() for name in (choices.text("standby_imports") or "").split(",") if name.strip())
    for name in imports:
        if not all(part.isidentifier() for part in name.split(".")):
            choices.reject("standby_imports", f"module names with commas between them, {name!r} is none")
    draft.take("standby_imports", imports)
    wanted = choices.flag("standby")
    reason = _no_standby(draft, entrypoint) if wanted else ""
    draft.take("standby", wanted and not reason)
    if reason:
        draft.notice(f"{choices.label('standby')} has no effect: {reason}")
    elif choices.chosen("standby_imports") and not wanted:
        draft.notice(f"{choices.label('standby_imports')} has no effect without --standby")


def _no_standby(draft: Draft, entrypoint: Entrypoint) -> str:
    """Return why no worker could ever be taken over by a spare, empty if one could."""
    choices = draft.choices
    if entrypoint.function is not None:
        return "functions as workers (--run-path among them) start afresh"
    if not entrypoint.python:
        return "only Python scripts and modules can have standby workers, not programs (--no-python)"
    if choices.text("debug_rank") is not None:
        return "a worker that has the terminal (--debug-rank) starts afresh"
    alone = node_range(choices)[1] == 1
    if alone and choices.text("policy") == "intensity" and integer(choices, "max_restarts", at_least=0) == 0:
        return "with --max-restarts 0 there is no restart"
    return ""

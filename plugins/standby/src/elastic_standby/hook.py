"""The hook behind `--standby`."""

from collections.abc import Sequence
from typing import ClassVar

from elastic_core.api import AgentHook, ConfigError, HookSettings, OptionSpec, Power
from elastic_core.api.starters import AgentLoop, WorkerStarter
from elastic_standby.options import STANDBY, STANDBY_IMPORTS


class Standby(AgentHook):
    """Keeps spares for workers. If no worker could be replaced by a spare, a line says why."""

    api_version: ClassVar[int] = 1
    powers: ClassVar[frozenset[Power]] = frozenset({Power.STARTS})
    options: ClassVar[Sequence[OptionSpec]] = (STANDBY, STANDBY_IMPORTS)

    def __init__(self, settings: HookSettings) -> None:
        """Read the options.

        Raises:
            ConfigError: a name to import is not a module name.
        """
        super().__init__(settings)
        self.imports = modules(settings.option("standby_imports", str, ""))
        wanted = settings.option("standby", bool, False)
        reason = why_without(settings) if wanted else ""
        self.wanted = wanted and not reason
        if reason:
            self.notices = (f"--standby has no effect: {reason}",)
        elif not wanted:
            text = settings.option("standby_imports", str)
            self.notices = (f"--standby-imports {text!r} has no effect without --standby",)

    def worker_starter(self, loop: AgentLoop) -> WorkerStarter | None:
        """Return the pool of spares."""
        if not self.wanted:
            return None
        from elastic_standby.pool import StandbyPool

        return StandbyPool(loop, imports=self.imports)


def modules(text: str) -> tuple[str, ...]:
    """Return the names of modules in a list separated by commas.

    Raises:
        ConfigError: one is not a module name.
    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(
                f"--standby-imports: {text!r}; expected module names with commas between them, {name!r} is none",
                hint=f"--standby-imports {STANDBY_IMPORTS.default}, the default",
            )
    return names


def why_without(settings: HookSettings) -> str:
    """Return why no worker could be replaced by a spare; empty if one could."""
    if settings.workers_run == "function":
        return "functions as workers (--run-path among them) start afresh"
    if settings.workers_run == "program":
        return "only Python scripts and modules can have standby workers, not programs (--no-python)"
    if settings.debugging:
        return "a worker that has the terminal (--debug-rank) starts afresh"
    return "" if settings.may_restart else "with --max-restarts 0 there is no restart"

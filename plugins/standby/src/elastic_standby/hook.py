"""The hook behind `--standby`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from elastic_core.api import AgentHook, ConfigError, HookSettings, OptionSpec, Power
from elastic_core.api.starters import AgentLoop, WorkerStarter
from elastic_standby.options import STANDBY, STANDBY_IMPORTS, STANDBY_START

if TYPE_CHECKING:
    from elastic_standby.forks_and_spares import Starts


class Standby(AgentHook):
    """Starts workers from interpreters that have imported torch. If no worker could be, a line says why."""

    api_version: ClassVar[int] = 1
    powers: ClassVar[frozenset[Power]] = frozenset({Power.STARTS, Power.RUN})
    options: ClassVar[Sequence[OptionSpec]] = (STANDBY, STANDBY_START, STANDBY_IMPORTS)

    def __init__(self, settings: HookSettings) -> None:
        """Read the options.

        Raises:
            ConfigError: a name to import is not a module name.
        """
        super().__init__(settings)
        self.imports = modules(settings.option("standby_imports", str, ""))
        wanted = settings.option("standby", bool, False)
        self.how = settings.option("standby_start", str, "auto")
        reason = why_without(settings, self.how) if wanted else ""
        self.wanted = wanted and not reason
        if reason:
            self.notices = (f"--standby has no effect: {reason}",)
        elif not wanted:
            start = self.how if self.how != STANDBY_START.default else None
            texts = {"standby-start": start, "standby-imports": settings.option("standby_imports", str)}
            if start and texts["standby-imports"] == STANDBY_IMPORTS.default:
                del texts["standby-imports"]
            self.notices = tuple(
                f"--{name} {text!r} has no effect without --standby" for name, text in texts.items() if text
            )

    def worker_starter(self, loop: AgentLoop) -> WorkerStarter | None:
        """Return the starter of workers."""
        if not self.wanted:
            return None
        from elastic_standby.forks import ForkServer
        from elastic_standby.forks_and_spares import ForksAndSpares

        forks, spares = None, None
        if self.how != "spawn" and not self.settings.own_process:
            # Only `elastic run` becomes the parent of orphans, which forks of the interpreter with the imports are.
            loop.notice("workers are not forked (--standby): a library call runs this agent; they are started by exec")
        elif self.how != "spawn":
            forks = ForkServer(
                loop,
                command=self.settings.command,
                environment=self.settings.environment,
                marks={
                    "ELASTIC_INCARNATION": self.settings.incarnation,
                    "TORCHELASTIC_RUN_ID": self.settings.run_id,
                },
                imports=self.imports,
                ahead=self.settings.may_restart,
            )
        if self.how != "fork" and self.settings.may_restart:
            from elastic_standby.pool import StandbyPool

            spares = StandbyPool(loop, imports=self.imports)
        return ForksAndSpares(forks, spares, self._record)

    def _record(self, starts: "Starts") -> None:
        """Report to the feed how the workers of a round were started: `--timings` prints it."""
        self.run.record("worker_starts", {"how": starts.text})


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


def why_without(settings: HookSettings, how: str) -> str:
    """Return why no worker could be started so; empty if one could."""
    if settings.workers_run == "function":
        return "functions as workers (--run-path among them) start afresh"
    if settings.workers_run == "program":
        return "only Python scripts and modules can have standby workers, not programs (--no-python)"
    if settings.debugging:
        return "a worker that has the terminal (--debug-rank) starts afresh"
    if how == "spawn" and not settings.may_restart:
        return "with --max-restarts 0 there is no restart, and --standby-start spawn helps at restarts only"
    return ""

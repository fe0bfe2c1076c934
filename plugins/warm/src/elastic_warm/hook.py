"""The hook that keeps workers which are able to leave their round, on in every run that may have another round."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from elastic_core.api import (
    AgentHook,
    AgentStopped,
    DecisionTaken,
    Draining,
    HookSettings,
    Launches,
    OptionSpec,
    Power,
    Stop,
    WorkersStarting,
)
from elastic_core.api.starters import AgentLoop, WorkerStarter
from elastic_warm.options import (
    BYTES_VARIABLE,
    DIR_VARIABLE,
    MIB,
    SOCKET_VARIABLE,
    TIMEOUT_VARIABLE,
    WARM_MEMORY,
    WARM_TIMEOUT,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elastic_warm.commit_folder import CommitFolder
    from elastic_warm.connections import Message
    from elastic_warm.starter import WarmStarter

FieldValue = str | int | float | bool | None


class Warm(AgentHook):
    """Keeps workers whose scripts use `elastic_warm`. Other workers are started and stopped as without it."""

    api_version: ClassVar[int] = 1
    powers: ClassVar[frozenset[Power]] = frozenset({Power.STARTS, Power.LAUNCHES, Power.RUN})
    options: ClassVar[Sequence[OptionSpec]] = (WARM_TIMEOUT, WARM_MEMORY)

    def __init__(self, settings: HookSettings) -> None:
        super().__init__(settings)
        self._timeout_s = settings.option("warm_timeout", float)
        self._memory_mib = settings.option("warm_memory", int)
        self._commits: CommitFolder | None = None
        self._loop: AgentLoop | None = None
        self._starter: WarmStarter | None = None
        self._path = ""
        self._fields: dict[str, FieldValue] = {}
        """What this hook shows in the status: both reports below replace their own part of it."""

    @property
    def _wanted(self) -> bool:
        """Whether there can be a worker to keep: a program of its own, and another round."""
        settings = self.settings
        alone = settings.workers_run == "function" or settings.debugging
        return self._timeout_s > 0 and settings.may_restart and not alone and not settings.dry_run

    def worker_starter(self, loop: AgentLoop) -> WorkerStarter | None:
        """Return the starter, which listens for workers."""
        if not self._wanted:
            return None
        from elastic_warm.starter import WarmStarter

        try:
            self._starter = WarmStarter(
                loop,
                folder=self.settings.run_dir,
                timeout_s=self._timeout_s,
                record=self._record,
                committed=self._committed,
            )
        except OSError as error:
            loop.notice(f"no worker is kept between rounds, because there is no socket: {error.strerror or error}")
            return None
        self._loop, self._path = loop, self._starter.path
        if self._memory_mib:
            self._make_folder(loop)
        return self._starter

    def _make_folder(self, loop: AgentLoop) -> None:
        from elastic_warm.commit_folder import CommitFolder

        try:
            self._commits = CommitFolder()
        except OSError as error:
            loop.notice(f"--warm-memory has no effect: {error.strerror or error}")

    def on_workers_starting(self, event: WorkersStarting) -> Launches | None:
        """Name the socket to each worker, and never that of an agent around this one."""
        of_outer = {DIR_VARIABLE, BYTES_VARIABLE} & self.settings.environment.keys()
        if not self._path and SOCKET_VARIABLE not in self.settings.environment and not of_outer:
            return None
        variables = {SOCKET_VARIABLE: self._path, TIMEOUT_VARIABLE: f"{self._timeout_s:g}"}
        variables |= dict.fromkeys(of_outer, "")
        if self._commits is not None:
            variables |= {DIR_VARIABLE: str(self._commits.path), BYTES_VARIABLE: str(self._memory_mib * MIB)}
        return Launches(environment=variables)

    def on_decision(self, event: DecisionTaken) -> None:
        """End the kept workers if no round follows."""
        if isinstance(event.decision, Stop):
            self._end()

    def on_drain(self, event: Draining) -> None:
        """End the kept workers: this node leaves the run."""
        self._end()

    def on_agent_stopped(self, event: AgentStopped) -> None:
        """Release the memory of the commits."""
        if self._commits is not None:
            self._commits.close()

    def _end(self) -> None:
        if self._loop is not None and self._starter is not None:
            self._loop.post(self._starter.end)

    def _record(self, kept: tuple[int, ...], count: int, refused: "Mapping[int, str]") -> None:
        """Report how the workers of a round were started: `--timings`, the ledger, status and metrics have it."""
        how = f"{len(kept)} of {count} kept"
        reasons = tuple(dict.fromkeys(refused.values()))
        summary = "; ".join((f"workers: {how}", *(f"{_ranks_of(refused, reason)}: {reason}" for reason in reasons)))
        not_kept = {str(rank): reason for rank, reason in sorted(refused.items())}
        self.run.record("worker_starts", {"how": how, "kept": list(kept), "not_kept": not_kept, "summary": summary})
        self._publish(
            {
                "kept_workers": len(kept),
                "not_kept_workers": len(refused),
                "not_kept_reason": "; ".join(reasons) or None,
            }
        )

    def _committed(self, commits: "Sequence[Message]") -> None:
        """Publish what commits cost this node's workers: the longest, all bytes, and the step that all have."""
        steps = [commit.step for commit in commits if commit.step is not None]
        self._publish(
            {
                "commit_ms": max((round(commit.commit_ms, 2) for commit in commits), default=None),
                "commit_bytes": sum(commit.bytes for commit in commits),
                "commit_step": min(steps, default=None),
            }
        )

    def _publish(self, fields: "Mapping[str, FieldValue]") -> None:
        self._fields |= fields
        self.run.publish(dict(self._fields))


def _ranks_of(refused: "Mapping[int, str]", reason: str) -> str:
    ranks = sorted(rank for rank, each in refused.items() if each == reason)
    return f"local rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))} not"

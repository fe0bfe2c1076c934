"""A hook that writes down every moment, with every field that it has."""

from pathlib import Path
from typing import ClassVar

from elastic_core.api import (
    AddEnvironment,
    AgentHook,
    AgentStarted,
    AgentStopped,
    DecisionTaken,
    Draining,
    FailureSeen,
    Joining,
    MembershipChanged,
    Refuse,
    RoundJoined,
    WorkerEnded,
    WorkersStarted,
    WorkersStarting,
    WorkersStopping,
)

FILE_NAME = "frozen.txt"


class Diary(AgentHook):
    """Writes a line for each moment into the run directory; tells workers where; refuses the tenth round."""

    api_version: ClassVar[int] = 1

    def on_agent_started(self, event: AgentStarted) -> None:
        """Note whose diary it is."""
        self._note(f"agent started: run {event.run_id} node {event.node_id} {event.run_dir} pid {event.pid}")

    def on_joining(self, event: Joining) -> Refuse | None:
        """Join, for a while."""
        self._note(f"joining round {event.round_index}")
        return Refuse(reason="ten rounds are enough") if event.round_index >= 9 else None

    def on_round_joined(self, event: RoundJoined) -> None:
        """Note the place."""
        formed = event.round
        place = f"node {formed.node_rank} of {formed.node_count}"
        ranks = f"{formed.local_world_size} workers from {formed.base_rank} of {formed.world_size}"
        role = f"{formed.role} {formed.role_base_rank} of {formed.role_world_size}"
        where = f"{formed.master_addr}:{formed.master_port}"
        self._note(f"round {formed.index} ({formed.token}, {formed.nonce}): {place}, {ranks}, {role}, {where}")

    def on_workers_starting(self, event: WorkersStarting) -> AddEnvironment | Refuse | None:
        """Tell the workers where the diary is."""
        first = event.round.global_rank(0)
        self._note(f"starting rank {first} and others, {event.restart_count} restarts")
        return AddEnvironment(variables={"FROZEN_DIARY": str(self._path())})

    def on_workers_started(self, event: WorkersStarted) -> None:
        """Note the workers."""
        self._note(f"started {len(event.pids)} workers in round {event.round.index}")

    def on_worker_exited(self, event: WorkerEnded) -> None:
        """Note an end."""
        end = event.exit
        told = f"{end.at_s:.3f} {end.at_ns} {end.runtime_s:.3f} {end.stop_signal} {end.stop_sent_ns} {end.oom_kills}"
        gone = "" if not end.unreapable else " unreapable"
        who = f"{end.local_rank} {end.global_rank} {end.pid}"
        self._note(f"ended in {event.round_index}: {who}: {end.code} {told}{gone}")

    def on_failure(self, event: FailureSeen) -> None:
        """Note the cause."""
        failure = event.failure
        who = f"{failure.node_id} rank {failure.global_rank} ({failure.local_rank})"
        what = f"{failure.failure_class.value}: {failure.summary}, {failure.exception_type} {failure.message!r}"
        when = f"{failure.round_index} {failure.at_s:.3f} {failure.uptime_s:.3f}"
        self._note(f"failure of {who}: {what}, code {failure.exit_code}, {when}, retryable {failure.retryable}")
        for worker in event.workers:
            source = worker.error.source if worker.error is not None else "nothing"
            self._note(f"worker {worker.exit.global_rank}: {worker.origin.value} {worker.summary} from {source}")

    def on_decision(self, event: DecisionTaken) -> None:
        """Note what follows."""
        self._note(f"{event.policy} decided {type(event.decision).__name__} {event.fallback_reason}".rstrip())

    def on_drain(self, event: Draining) -> None:
        """Note a stop signal."""
        self._note(f"draining: signal {event.signum}, {event.deadline_s:g} s")

    def on_workers_stopping(self, event: WorkersStopping) -> None:
        """Note the stop."""
        self._note(f"stopping round {event.round_index}: {event.reason}, {event.grace_s:g} s")

    def on_membership_changed(self, event: MembershipChanged) -> None:
        """Note who came or went."""
        self._note(f"membership of round {event.round_index}: {type(event.change).__name__}")

    def on_agent_stopped(self, event: AgentStopped) -> None:
        """Note the end of all."""
        self._note(f"agent stopped: {event.exit_code} {event.reason}".rstrip())

    def _path(self) -> Path:
        return Path(self.settings.run_dir) / FILE_NAME

    def _note(self, line: str) -> None:
        with self._path().open("a", encoding="utf-8") as file:
            file.write(f"{self.settings.name}: {line}\n")

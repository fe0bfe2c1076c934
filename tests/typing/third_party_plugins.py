"""A stranger's plugins, as mypy --strict sees them; `make lint` checks this file, and no test runs it."""

from collections.abc import Sequence
from typing import ClassVar, assert_type

from elastic_core.api import (
    API_VERSION,
    AddEnvironment,
    AgentHook,
    Capability,
    Decision,
    Failure,
    FailureHandler,
    Ignore,
    OptionSpec,
    Refuse,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousTimeoutError,
    Restart,
    RoundChange,
    Stop,
    WorkersStarting,
)
from elastic_core.rendezvous.registry import register


class MyRendezvous(RendezvousHandler):
    """The whole interface, overridden."""

    api_version: ClassVar[int] = API_VERSION
    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.MEMBERSHIP})
    options: ClassVar[Sequence[OptionSpec]] = (OptionSpec(name="join_timeout", type="float", default=600.0, unit="s"),)

    def next_rendezvous(self) -> RendezvousInfo:
        """Form a round."""
        self.wait.check()
        if self.wait.remaining_s() < 1.0:
            raise RendezvousTimeoutError("nobody came", hint="more nodes")
        return RendezvousInfo(rank=0, world_size=1, master_addr="localhost", master_port=29500)

    def watch(self, timeout_s: float) -> RoundChange | None:
        """Report nothing."""
        self.wait.sleep(timeout_s)
        return None


class TupleRendezvous(RendezvousHandler):
    """The least that works, with torch's tuple."""

    api_version = API_VERSION

    def next_rendezvous(self) -> tuple[object, int, int]:
        """Form a round."""
        return object(), 0, 1


class MyPolicy(FailureHandler):
    """Every decision."""

    api_version = API_VERSION

    def decide(self, failure: Failure, history: Sequence[Failure]) -> Decision:
        """Decide by how often it has happened."""
        assert_type(failure.global_rank, int | None)
        if failure.exit_code == 3:
            return Ignore(rule="three")
        if len(history) > 5:
            return Stop(reason="too often", outcome="failed")
        return Restart(delay_s=2.0 ** len(history), exclude_nodes=(failure.node_id,))


class MyHook(AgentHook):
    """A health gate that also adds a variable."""

    api_version = API_VERSION

    def on_workers_starting(self, event: WorkersStarting) -> AddEnvironment | Refuse | None:
        """Refuse the third restart."""
        assert_type(event.restart_count, int)
        if event.restart_count > 2:
            return Refuse(reason="enough")
        return AddEnvironment(variables={"MY_ROUND": str(event.round.index)})


register("mine", MyRendezvous)
register("tuple", TupleRendezvous)

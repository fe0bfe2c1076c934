"""A stranger's plugins, as mypy --strict sees them; `make lint` checks this file, and no test runs it."""

from collections.abc import Collection, Sequence
from typing import ClassVar, assert_type

from elastic_core.api import (
    API_VERSION,
    AgentHook,
    CoordinationStore,
    Decision,
    Failure,
    FailureHandler,
    Ignore,
    Launches,
    OptionSpec,
    Power,
    Refuse,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousSettings,
    Restart,
    Stop,
    WaitBudget,
    WorkersStarting,
)
from elastic_core.api.rendezvous import Capability, RendezvousTimeoutError, RoundChange
from elastic_core.api.stores import (
    Document,
    Member,
    Members,
    Renewal,
    Revisions,
    Seat,
    Swapped,
    Topic,
    Watched,
    compare,
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
        assert_type(self.settings.option("pause", float), float)
        assert_type(self.settings.option("on", bool), bool)
        assert_type(self.settings.option("prefix", str, None), str | None)
        assert_type(self.settings.option_list("retry", int), tuple[int, ...])
        if failure.exit_code == 3:
            return Ignore(rule="three")
        if len(history) > 5:
            return Stop(reason="too often", outcome="failed")
        return Restart(delay_s=2.0 ** len(history), exclude_nodes=(failure.node_id,))


class MyHook(AgentHook):
    """A health gate that also adds a variable."""

    api_version = API_VERSION
    powers = frozenset({Power.LAUNCHES, Power.REFUSAL})

    def on_workers_starting(self, event: WorkersStarting) -> Launches | Refuse | None:
        """Refuse the third restart."""
        assert_type(event.restart_count, int)
        if event.restart_count > 2:
            return Refuse(reason="enough")
        return Launches(environment={"MY_ROUND": str(event.round.index)})


class MyStore(CoordinationStore):
    """Every operation of a store, for one member that never goes."""

    api_version = API_VERSION
    options: ClassVar[Sequence[OptionSpec]] = (OptionSpec(name="prefix", default="p"),)
    min_ttl_s = 2.0

    @property
    def where(self) -> str:
        """Name the endpoint."""
        assert_type(self.settings, RendezvousSettings)
        return f"mine at {self.settings.endpoint}"

    def connect(self, *, wait: WaitBudget) -> str:
        """Reach nothing."""
        wait.check()
        return ""

    def enlist(self, record: bytes, *, incarnation: str, ttl_s: float, wait: WaitBudget) -> Seat:
        """Seat the one."""
        return Seat(number=1, incarnation=incarnation, ahead=0)

    def update(self, seat: Seat, record: bytes, *, wait: WaitBudget) -> bool:
        """Write nothing."""
        return seat.number == 1

    def renew(self, seat: Seat, *, ttl_s: float, wait: WaitBudget) -> Renewal | None:
        """Let it live."""
        return Renewal(ahead=0, live=1, next_expiry_s=None)

    def withdraw(self, seat: Seat, *, wait: WaitBudget) -> None:
        """Keep it."""

    def members(self, *, wait: WaitBudget) -> Members:
        """Name it."""
        return Members(revision=1, members=(Member(seat=1, incarnation="", record=b""),))

    def load(self, key: str, *, wait: WaitBudget) -> Document | None:
        """Know nothing."""
        return None

    def swap(self, key: str, new: bytes, *, expect: str | None, keep_s: float, wait: WaitBudget) -> Swapped:
        """Take everything."""
        return Swapped(applied=True, current=Document(value=new, version="1"))

    def watch(self, since: Revisions, topics: Collection[Topic], *, timeout_s: float, wait: WaitBudget) -> Watched:
        """See nothing new."""
        wait.sleep(timeout_s)
        seen = compare(since, since, topics)
        assert_type(seen.changed, frozenset[Topic])
        return seen


register("mine", MyRendezvous)
register("tuple", TupleRendezvous)
register("store", MyStore)

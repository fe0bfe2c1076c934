"""The kit for rendezvous backends: tests that a `RendezvousHandler` forms consistent rounds, and can be cancelled."""

import math
from collections.abc import Iterator
from contextlib import nullcontext
from typing import ClassVar, Final, Protocol, get_args

import pytest

from elastic_core.api import ElasticError, RendezvousHandler, RendezvousInfo, WaitBudget
from elastic_core.api.rendezvous import Capability, RendezvousClosedError, RoundChange
from elastic_core.api.stores import WaitCancelledError
from elastic_plugin_kit.conformance.kit import (
    Kit,
    Started,
    all_at_once,
    cancel_s,
    check_api_version,
    check_options,
    late_s,
    settle,
)
from elastic_plugin_kit.conformance.kit_process import check_imports, nothing_left
from elastic_plugin_kit.conformance.store_run import fresh

QUIET_S: Final = 0.3
LATE_S: Final = 1.0


class MakeHandler(Protocol):
    """What the fixture `make_handler` gives."""

    def __call__(self, *, run_id: str, node_rank: int, min_nodes: int, max_nodes: int) -> RendezvousHandler:
        """Return a new handler of one node."""
        ...


class RendezvousRun:
    """A run that no other test knows, and the handlers of its nodes."""

    def __init__(self, make_handler: MakeHandler) -> None:
        self._make = make_handler
        self._handlers: list[RendezvousHandler] = []
        self.run_id = fresh("kit")

    def node(self, node_rank: int = 0, *, nodes: int = 1, max_nodes: int = 0) -> RendezvousHandler:
        """Return a handler of a run of so many nodes."""
        made = self._make(run_id=self.run_id, node_rank=node_rank, min_nodes=nodes, max_nodes=max_nodes or nodes)
        self._handlers.append(made)
        return made

    def close(self) -> None:
        """Shut every handler down."""
        for handler in self._handlers:
            handler.wait = WaitBudget.lasting(5)
            handler.shutdown()


class RendezvousConformance(Kit):
    """Subclass it and give the fixture `make_handler`.

    `make_handler` returns a function with the keyword arguments `run_id`, `node_rank`, `min_nodes` and `max_nodes`,
    which returns a new handler of one node. Give it short timeouts, a last call of a fraction of a second say.
    """

    page: ClassVar[str] = "rendezvous_handler.md"

    most_nodes: ClassVar[int] = 3
    """How many nodes the backend can bring together; 1 skips the tests of several nodes."""
    round_s: ClassVar[float] = 10.0
    """How long forming a round, or noticing a change, may take before a test gives up."""

    @pytest.fixture
    def make_handler(self) -> MakeHandler:
        """Return a function that makes a handler: the one fixture that a subclass must give."""
        pytest.fail(f"{type(self).__name__} must give the fixture `make_handler`")

    @pytest.fixture
    def run(self, make_handler: MakeHandler) -> Iterator[RendezvousRun]:
        """Give a run of the test's own, and shut its handlers down in the end."""
        run = RendezvousRun(make_handler)
        yield run
        run.close()

    # --- declarations ---

    def test_the_api_version_is_stated(self, run: RendezvousRun) -> None:
        """The class states the version of the interfaces that it was written for."""
        check_api_version(type(run.node()))

    def test_the_options_are_declared_well(self, run: RendezvousRun) -> None:
        """The core can report each wrong value of an option."""
        cls = type(run.node())
        check_options(cls.__name__, cls.options)

    def test_capabilities_are_known_ones(self, run: RendezvousRun) -> None:
        """The agent relies on what is declared."""
        capabilities = type(run.node()).capabilities
        assert isinstance(capabilities, frozenset), (
            f"`capabilities` is {capabilities!r}; expected a frozenset of Capability"
        )
        assert capabilities <= set(Capability), (
            f"`capabilities` has {capabilities - set(Capability)}; expected only Capability"
        )

    def test_its_import_is_light(self, run: RendezvousRun) -> None:
        """Neither torch nor numpy comes into the agent's process."""
        check_imports(type(run.node()))

    def test_it_knows_whose_it_is(self, run: RendezvousRun) -> None:
        """Run id and backend are those of the settings; whether the agent hosts a store is yes or no."""
        handler = run.node()
        assert handler.get_run_id() == run.run_id
        assert handler.get_backend(), "get_backend returned an empty text; expected the backend's name"
        assert isinstance(handler.use_agent_store, bool)

    # --- one node ---

    def test_one_node_forms_a_round(self, run: RendezvousRun) -> None:
        """Rank 0 of one, soon."""
        info = self._joined(run.node())
        assert (info.rank, info.world_size) == (0, 1)

    def test_tokens_only_rise(self, run: RendezvousRun) -> None:
        """A later round of a handler has a higher token."""
        handler = run.node()
        tokens = [self._joined(handler).round_token for _ in range(3)]
        if set(tokens) == {0}:
            pytest.skip("the handler gives its rounds no tokens")
        assert tokens == sorted(set(tokens)), f"round_token was {tokens} in successive rounds; expected rising numbers"

    def test_a_quiet_round_is_quiet(self, run: RendezvousRun) -> None:
        """Watching a round in which nothing happens returns None, at its timeout."""
        handler = run.node()
        self._joined(handler)
        for _ in range(2):
            watch = Started(lambda: _bound(handler).watch(QUIET_S))
            ended = watch.ended(within_s=QUIET_S + late_s(LATE_S), what="watch")
            assert ended.value() is None, (
                f"watch returned {ended.value()!r} for a round in which nothing happened; expected None"
            )
            assert ended.took_s >= 0.9 * QUIET_S, (
                f"watch returned None after {ended.took_s:.2f} s; expected it to wait for its timeout of {QUIET_S:g} s"
            )
        assert handler.num_nodes_waiting() == 0
        assert handler.is_closed() is False

    # --- cancellation and deadlines ---

    def test_a_cancelled_budget_forms_no_round(self, run: RendezvousRun) -> None:
        """`next_rendezvous` ends at once, with WaitCancelledError."""
        handler = run.node()
        handler.wait = WaitBudget()
        handler.wait.cancel()
        ended = Started(handler.next_rendezvous).ended(within_s=cancel_s(), what="next_rendezvous, cancelled before")
        assert isinstance(ended.error, WaitCancelledError), (
            f"a cancelled next_rendezvous ended with {ended.error!r}; expected WaitCancelledError"
        )

    def test_next_rendezvous_ends_when_cancelled(self, run: RendezvousRun) -> None:
        """Within 100 ms, while it waits for another node."""
        self._needs(2)
        handler = run.node(nodes=2)
        handler.wait = wait = WaitBudget()
        joining = Started(handler.next_rendezvous)
        settle(0.3)
        if not joining.running and joining.ended(within_s=1, what="next_rendezvous").error is None:
            pytest.skip("the handler forms a round without waiting for the other node")
        wait.cancel()
        error = joining.ended(within_s=cancel_s(), what="next_rendezvous that was cancelled").error
        assert isinstance(error, WaitCancelledError), (
            f"next_rendezvous ended with {error!r}; expected WaitCancelledError"
        )

    def test_next_rendezvous_ends_at_its_deadline(self, run: RendezvousRun) -> None:
        """The budget's, whatever the handler's own timeouts are; with an error of ours."""
        self._needs(2)
        handler = run.node(nodes=2)
        handler.wait = WaitBudget.lasting(QUIET_S)
        joining = Started(handler.next_rendezvous)
        ended = joining.ended(within_s=QUIET_S + late_s(LATE_S), what="next_rendezvous")
        if ended.error is None:
            pytest.skip("the handler forms a round without waiting for the other node")
        assert isinstance(ended.error, ElasticError), (
            f"next_rendezvous ended with {ended.error!r} at its deadline; expected an ElasticError"
        )

    def test_watch_ends_when_cancelled(self, run: RendezvousRun) -> None:
        """Within 100 ms, with WaitCancelledError; the handler can be used again."""
        handler = run.node()
        self._joined(handler)
        handler.wait = wait = WaitBudget()
        watching = Started(lambda: handler.watch(4.0))
        settle()
        wait.cancel()
        error = watching.ended(within_s=cancel_s(), what="a watch that was cancelled").error
        assert isinstance(error, WaitCancelledError), (
            f"a cancelled watch ended with {error!r}; expected WaitCancelledError"
        )
        assert self._joined(handler).world_size == 1

    # --- the end ---

    def test_shutdown_is_idempotent(self, run: RendezvousRun) -> None:
        """Before any round, after one, and again; it answers yes or no and never raises."""
        for joined in (False, True):
            handler = run.node()
            if joined:
                self._joined(handler)
            assert {type(handler.shutdown()) for _ in range(2)} == {bool}

    def test_shutdown_leaves_nothing(self, run: RendezvousRun) -> None:
        """All threads that the handler has started, and all sockets and files that it has opened, end with it."""
        for last in (False, True):
            # What is imported or cached at the first time is no leak.
            with nothing_left("the handler") if last else nullcontext():
                handler = run.node()
                self._joined(handler)
                handler.shutdown()

    def test_a_closed_rendezvous_forms_no_round(self, run: RendezvousRun) -> None:
        """Where closing means something: `RendezvousClosedError`."""
        handler = run.node()
        self._joined(handler)
        _bound(handler).set_closed()
        if not handler.is_closed():
            if Capability.CONTROL in type(handler).capabilities:
                pytest.fail("is_closed returned False after set_closed; expected True, as the class declares `control`")
            pytest.skip("closing means nothing to this handler")
        ended = Started(_bound(handler).next_rendezvous).ended(within_s=self.round_s, what="next_rendezvous")
        assert isinstance(ended.error, RendezvousClosedError), (
            f"next_rendezvous of a closed run ended with {ended.error!r}; expected RendezvousClosedError"
        )

    # --- several nodes ---

    @pytest.mark.parametrize("nodes", [2, 3])
    def test_all_nodes_form_one_round(self, run: RendezvousRun, nodes: int) -> None:
        """Each has a rank of its own, and they agree on everything else."""
        self._needs(nodes)
        _check_one_round(self._all_joined([run.node(rank, nodes=nodes) for rank in range(nodes)]))

    def test_all_nodes_form_the_next_round(self, run: RendezvousRun) -> None:
        """With a higher token."""
        self._needs(2)
        handlers = [run.node(rank, nodes=2) for rank in range(2)]
        first, second = self._all_joined(handlers), self._all_joined(handlers)
        _check_one_round(second)
        if first[0].round_token:
            assert second[0].round_token > first[0].round_token, (
                "the next round's round_token is not higher; expected a rising number"
            )

    def test_runs_do_not_meet(self, make_handler: MakeHandler) -> None:
        """Nodes of two runs form two rounds, whatever their run ids have in common."""
        runs = [RendezvousRun(make_handler) for _ in range(2)]
        runs[1].run_id = f"{runs[0].run_id}:é /x"
        try:
            for info in self._all_joined([run.node() for run in runs]):
                assert (info.rank, info.world_size) == (0, 1)
        finally:
            for run in runs:
                run.close()

    # --- capabilities ---

    def test_a_newcomer_is_told(self, run: RendezvousRun) -> None:
        """`membership`: a round below MAX nodes notices a node that wants to join, and the next round includes it."""
        self._needs(2, Capability.MEMBERSHIP, run)
        first = run.node(0, nodes=1, max_nodes=2)
        self._joined(first)
        second = run.node(1, nodes=1, max_nodes=2)
        joining = Started(_bound(second, self.round_s).next_rendezvous)
        self._told(first, "a node that wants to join")
        again = Started(_bound(first, self.round_s).next_rendezvous)
        infos = [joined.ended(within_s=self.round_s, what="the round with both").value() for joined in (again, joining)]
        _check_one_round([_info(info) for info in infos])
        assert _info(infos[0]).world_size == 2

    def test_a_departure_is_told(self, run: RendezvousRun) -> None:
        """`membership`: a round notices a node that has left."""
        self._needs(2, Capability.MEMBERSHIP, run)
        handlers = [run.node(rank, nodes=2) for rank in range(2)]
        self._all_joined(handlers)
        handlers[1].shutdown()
        self._told(handlers[0], "a node that has left")

    def test_the_end_is_told(self, run: RendezvousRun) -> None:
        """`control`: what one node closes is closed for all."""
        self._needs(2, Capability.CONTROL, run)
        handlers = [run.node(rank, nodes=2) for rank in range(2)]
        self._all_joined(handlers)
        _bound(handlers[0]).set_closed()
        self._told(handlers[1], "the end of the run")

    # --- behind them ---

    def _needs(self, nodes: int, capability: Capability | None = None, run: RendezvousRun | None = None) -> None:
        if self.most_nodes < nodes:
            pytest.skip(f"most_nodes is {self.most_nodes}")
        if capability and run and capability not in type(run.node()).capabilities:
            pytest.skip(f"the capability {capability.value!r} is not declared")

    def _joined(self, handler: RendezvousHandler) -> RendezvousInfo:
        (info,) = self._all_joined([handler])
        return info

    def _all_joined(self, handlers: list[RendezvousHandler]) -> list[RendezvousInfo]:
        works = [_bound(handler, self.round_s).next_rendezvous for handler in handlers]
        return [_info(info) for info in all_at_once(works, within_s=self.round_s, what="next_rendezvous")]

    def _told(self, handler: RendezvousHandler, what: str) -> RoundChange:
        change = Started(lambda: _bound(handler, math.inf).watch(self.round_s)).ended(
            within_s=self.round_s + late_s(LATE_S), what=f"watch for {what}"
        )
        told = change.value()
        assert isinstance(told, get_args(RoundChange)), (
            f"watch returned {told!r} for {what}; expected one of the round changes"
        )
        return told  # type: ignore[no-any-return]  # one of the union, as was just checked


def _bound(handler: RendezvousHandler, seconds: float = 5.0) -> RendezvousHandler:
    """Bind a new budget, as the agent does before each call."""
    handler.wait = WaitBudget.lasting(None if seconds == math.inf else seconds)
    return handler


def _info(formed: RendezvousInfo | tuple[object, int, int]) -> RendezvousInfo:
    if isinstance(formed, RendezvousInfo):
        return formed
    store, rank, world_size = formed
    return RendezvousInfo(rank=rank, world_size=world_size, store=store)


def _check_one_round(infos: list[RendezvousInfo]) -> None:
    count = len(infos)
    assert sorted(info.rank for info in infos) == list(range(count)), (
        f"the ranks of one round are {[info.rank for info in infos]}; expected 0 to {count - 1}"
    )
    assert {info.world_size for info in infos} == {count}
    for field in ("round_token", "nonce", "members", "master_addr", "master_port"):
        values = {getattr(info, field) for info in infos}
        assert len(values) == 1, f"the nodes of one round have different values of {field}; expected one: {values}"
    info = infos[0]
    if info.members:
        assert len(info.members) == count, f"a round of {count} nodes has {len(info.members)} members; expected {count}"
        assert len({member.node_id for member in info.members}) == count, (
            "two members have the same node id; expected different ones"
        )
    agree = info.master_addr is not None or all(info.store is not None for info in infos) or bool(info.members)
    assert agree, "no master address, and neither a store nor addresses by which the nodes could agree on one"

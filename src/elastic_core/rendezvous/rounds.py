"""Builds the round that workers need from a handler's result: global ranks, and the master's address."""

from collections.abc import Callable
from typing import NoReturn, Protocol, TypeVar, cast

from elastic_core.errors import ElasticError, RendezvousConnectionError, RendezvousStateError
from elastic_core.plugin_faults import text_of
from elastic_core.system.clock import WaitBudget
from elastic_core.types import RendezvousInfo, RendezvousSettings, RosterMember, Round

ADDRESS_KEY = "MASTER_ADDR"
PORT_KEY = "MASTER_PORT"
POLL_S = 0.05
"""Seconds between reads of a store that can't block, or can't be cancelled."""

_T = TypeVar("_T")

ChooseMaster = Callable[[], tuple[str, int]]


class BootstrapStore(Protocol):
    """The methods that a handler's store needs for nodes to agree on the master's address; torch's `Store` has them."""

    def set(self, key: str, value: str) -> object:
        """Write a value."""

    def get(self, key: str) -> bytes | str | None:
        """Return a value; if there is none yet, block, raise LookupError, or return None."""


def resolve_round(
    info: RendezvousInfo | tuple[object, int, int],
    *,
    index: int,
    settings: RendezvousSettings,
    token: int,
    choose_master: ChooseMaster,
    wait: WaitBudget,
) -> Round:
    """Return the complete round.

    The master's address is the handler's. If the handler gives none, rank 0 chooses it and the other nodes read it from
    the handler's store, under a key of this round: the handler's token, else `token`. So a handler without tokens must
    form its rounds in step on all nodes.

    `index`, the number of earlier rounds of this agent, and `token` count if the handler gives none.
    `choose_master` returns this node's address and port for the worker of rank 0, and is called on rank 0 only.

    Raises:
        RendezvousStateError: the handler's result can't be a round.
        RendezvousConnectionError: the handler's store failed.
        WaitCancelledError: the agent no longer wants a round.
        WaitExpiredError: no address was found in time.

    Threading: the rendezvous thread; may block.
    """
    checked = _checked(_as_info(info, settings), settings)
    members = checked.members or _equal_members(checked.world_size, settings)
    sizes = [member.local_world_size for member in members]
    role_sizes = [member.local_world_size if member.role == settings.role else 0 for member in members]
    round_token = checked.round_token or token
    counted = (checked.restart_count, checked.membership_changes, checked.history) != (None, None, None)
    address, port = _master(checked, settings, round_token or index, choose_master, wait)
    return Round(
        index=index if checked.index is None else checked.index,
        token=round_token,
        nonce=checked.nonce,
        node_rank=checked.rank,
        node_count=checked.world_size,
        local_world_size=settings.local_world_size,
        base_rank=sum(sizes[: checked.rank]),
        world_size=sum(sizes),
        role=settings.role,
        role_base_rank=sum(role_sizes[: checked.rank]),
        role_world_size=sum(role_sizes),
        master_addr=address,
        master_port=port,
        node_id=members[checked.rank].node_id,
        restart_count=(checked.restart_count or 0) if counted else None,
        membership_changes=(checked.membership_changes or 0) if counted else None,
        history=checked.history or (),
        at_s=checked.at_s,
    )


# --- what the handler returned


def _refuse(settings: RendezvousSettings, what: str) -> NoReturn:
    raise RendezvousStateError(f"rendezvous {settings.backend!r} {what}", hint="report it to the backend's authors")


def _as_info(info: object, settings: RendezvousSettings) -> RendezvousInfo:
    if isinstance(info, RendezvousInfo):
        return info
    if isinstance(info, tuple) and len(info) == 3:
        store, rank, world_size = info
        return RendezvousInfo(rank=rank, world_size=world_size, store=store)
    _refuse(settings, f"returned {type(info).__name__}; expected a RendezvousInfo or (store, rank, world_size)")


def _checked(info: RendezvousInfo, settings: RendezvousSettings) -> RendezvousInfo:
    for name, value in (("rank", info.rank), ("world_size", info.world_size), ("round_token", info.round_token)):
        if not isinstance(value, int) or isinstance(value, bool):
            _refuse(settings, f"returned {name} {value!r}; expected a whole number")
    for name, count in (
        ("index", info.index),
        ("restart_count", info.restart_count),
        ("membership_changes", info.membership_changes),
    ):
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 0):
            _refuse(settings, f"returned {name} {count!r}; expected a whole number from 0 up, or None")
    if not 0 <= info.rank < info.world_size:
        _refuse(settings, f"returned rank {info.rank} of {info.world_size} nodes; ranks begin at 0")
    within = settings.min_nodes <= info.world_size <= settings.max_nodes
    if not within and "nnodes" not in settings.allow_mismatch:  # with an allowed mismatch, the leader's limits apply
        wanted = f"{settings.min_nodes}:{settings.max_nodes}"
        _refuse(settings, f"formed a round of {info.world_size} nodes; --nnodes allows {wanted}")
    if info.master_port is not None:
        _port(info.master_port, settings)
    if info.members:
        _check_members(info, settings)
    return info


def _check_members(info: RendezvousInfo, settings: RendezvousSettings) -> None:
    if len(info.members) != info.world_size:
        _refuse(settings, f"named {len(info.members)} members in a round of {info.world_size} nodes")
    for rank, member in enumerate(info.members):
        if member.local_world_size < 1:
            _refuse(settings, f"gave node {rank} {member.local_world_size} workers; expected at least 1")
    mine = info.members[info.rank]
    if (mine.local_world_size, mine.role) != (settings.local_world_size, settings.role):
        _refuse(
            settings,
            f"knows this node (rank {info.rank}) with {mine.local_world_size} workers in role {mine.role!r}; "
            f"it has {settings.local_world_size} in role {settings.role!r}",
        )


def _equal_members(count: int, settings: RendezvousSettings) -> tuple[RosterMember, ...]:
    """Return a roster that assumes that every node is like this one; a handler without a roster gives no more."""
    return (RosterMember(node_id="", local_world_size=settings.local_world_size, role=settings.role),) * count


def _port(value: object, settings: RendezvousSettings) -> int:
    text = str(value)
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 2**16):
        _refuse(settings, f"gave the master port {value!r}; expected a number from 1 to 65535")
    return int(text)


# --- the master's address


def _master(
    info: RendezvousInfo, settings: RendezvousSettings, key: int, choose_master: ChooseMaster, wait: WaitBudget
) -> tuple[str, int]:
    if info.master_addr and info.master_port:
        return info.master_addr, info.master_port
    if info.world_size > 1 and info.store is None:
        _refuse(settings, "gave neither a master address and port nor a store to agree on them")
    if info.rank > 0:
        store = cast("BootstrapStore", info.store)
        return _read_master(store, settings, key, wait)
    chosen_address, chosen_port = choose_master()
    rostered = info.members[0].address if info.world_size > 1 and info.members else ""
    address, port = info.master_addr or rostered or chosen_address, info.master_port or chosen_port
    if info.world_size > 1:
        store = cast("BootstrapStore", info.store)
        _guarded(settings, lambda: store.set(_store_key(key, ADDRESS_KEY), address))
        _guarded(settings, lambda: store.set(_store_key(key, PORT_KEY), str(port)))
    return address, port


def _store_key(round_key: int, name: str) -> str:
    return f"elastic/{round_key}/{name}"


def _read_master(store: BootstrapStore, settings: RendezvousSettings, key: int, wait: WaitBudget) -> tuple[str, int]:
    address = _read(store, settings, _store_key(key, ADDRESS_KEY), wait)
    port = _read(store, settings, _store_key(key, PORT_KEY), wait)
    if not address:
        _refuse(settings, "has an empty master address in its store")
    return address, _port(port, settings)


def _read(store: BootstrapStore, settings: RendezvousSettings, key: str, wait: WaitBudget) -> str:
    """Return a value as soon as the store has it.

    torch's `get` blocks without cancellation. Its `check` does not block, so it is called first.
    """
    check = getattr(store, "check", None)
    while True:
        wait.check()
        if check is None or _guarded(settings, lambda: check([key])):
            value = _guarded(settings, lambda: _get(store, key))
            if value is not None:
                return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        wait.sleep(POLL_S)


def _get(store: BootstrapStore, key: str) -> bytes | str | None:
    try:
        return store.get(key)
    except LookupError:  # a dict-like store: not there yet
        return None


def _guarded(settings: RendezvousSettings, call: Callable[[], _T]) -> _T:
    """Call the handler's store; report its exceptions as `RendezvousConnectionError`."""
    try:
        return call()
    except ElasticError:
        raise
    except Exception as err:
        raise RendezvousConnectionError(
            f"the store of rendezvous {settings.backend!r} failed: {text_of(err)}",
            hint="look at the node of rank 0 and the network to it",
        ) from err

"""Synchronization through torch's store: barrier, exchange, and a time limit for a block.

The store is any object with torch's methods. Torch is not imported here, except for its error of a barrier.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from elastic_torchrun.torch_import import torch_distributed

DEFAULT_TIMEOUT_S: Final = 300
_MAX_NAMED: Final = 16
"""The number of missing ranks that are named; each costs a read."""
_LOOK: Final = timedelta(milliseconds=1)
_COUNT, _LAST, _TRACE, _GATE = "/num_members", "/last_member", "/TRACE", "/TRACING_GATE"


@contextmanager
def store_timeout(store: Any, timeout: float) -> Iterator[None]:  # noqa: ANN401  # a store of torch's
    """Set another time limit of a store, in seconds, during the block; it is restored also after an exception."""
    before = store.timeout
    store.set_timeout(timedelta(seconds=timeout))
    try:
        yield
    finally:
        store.set_timeout(before)


def get_all(store: Any, rank: int, prefix: str, world_size: int) -> list[bytes]:  # noqa: ANN401  # as above
    """Return the values of `PREFIX0` to `PREFIXn`, and wait for each. Rank 0 returns after all have read theirs.

    Rank 0 usually hosts the store: if it left earlier, the others could not read.
    """
    values: list[bytes] = store.multi_get([f"{prefix}{index}" for index in range(world_size)])
    last = _arrive(store, world_size, f"{prefix}/finished")
    if rank == 0:
        store.wait([last])
    return values


def synchronize(
    store: Any,  # noqa: ANN401  # as above
    data: bytes,
    rank: int,
    world_size: int,
    key_prefix: str,
    timeout: float = DEFAULT_TIMEOUT_S,
) -> list[bytes]:
    """Publish `data`, and return the data of all ranks, by rank.

    The keys stay in the store: each exchange needs its own prefix.
    """
    with store_timeout(store, timeout):
        store.set(f"{key_prefix}{rank}", data)
        return get_all(store, rank, key_prefix, world_size)


def barrier(
    store: Any,  # noqa: ANN401  # as above
    world_size: int,
    key_prefix: str,
    barrier_timeout: float = DEFAULT_TIMEOUT_S,
    rank: int | None = None,
    rank_tracing_decoder: Callable[[int], str] | None = None,
    trace_timeout: float = 10,
) -> None:
    """Wait until `world_size` callers have reached the barrier; once for each `key_prefix`.

    Args:
        store: The store.
        world_size: The number of callers.
        key_prefix: Prefix of the keys.
        barrier_timeout: Seconds to wait.
        rank: This caller's rank. With it, the error of a barrier names the missing ranks.
        rank_tracing_decoder: Returns a name of a rank for that error, such as its host.
        trace_timeout: Seconds in which rank 0 then waits for the other ranks to report.

    Raises:
        RuntimeError: not all reached it in time (torch's DistStoreError, if torch's store raised it).
        ValueError: there is a decoder, but no rank.
    """
    if rank is None and rank_tracing_decoder is not None:
        raise ValueError("rank_tracing_decoder without rank; expected the rank of this caller")
    with store_timeout(store, barrier_timeout):
        last = _arrive(store, world_size, key_prefix)
        try:
            store.wait([last])
        except RuntimeError as error:
            if rank is None:
                raise
            missing = _missing(store, world_size, key_prefix, rank, rank_tracing_decoder or str, trace_timeout)
            if missing is None:
                raise
            raise _store_error()(
                f"barrier {key_prefix!r} on rank {rank}: not all of {world_size} came within {barrier_timeout:g} s, "
                f"missing_ranks=[{', '.join(missing)}]"
            ) from error


def _store_error() -> type[Exception]:
    """Return torch's error class of a store. Torch is imported already, as its store has just raised an error."""
    error: type[Exception] = torch_distributed("barrier").DistStoreError
    return error


def _arrive(store: Any, world_size: int, key_prefix: str) -> str:  # noqa: ANN401  # as above
    """Count this caller, and return the key that the last caller writes."""
    if store.add(key_prefix + _COUNT, 1) == world_size:
        store.set(key_prefix + _LAST, "1")
    return key_prefix + _LAST


def _missing(
    store: Any,  # noqa: ANN401  # as above
    world_size: int,
    key_prefix: str,
    rank: int,
    decoder: Callable[[int], str],
    trace_timeout_s: float,
) -> Iterable[str] | None:
    """Return the missing ranks: rank 0 reads them; the other ranks report themselves, and refer to rank 0."""
    store.set(f"{key_prefix}{rank}{_TRACE}", "1")
    if rank != 0:
        try:
            store.wait([key_prefix + _GATE], timedelta(seconds=2 * trace_timeout_s))  # it may have begun later
        except RuntimeError:
            return None  # rank 0 itself may be missing
        return [f"<rank 0 ({decoder(0)}) names them>"]
    missing: list[str] = []
    for other in range(1, world_size):
        if len(missing) >= _MAX_NAMED:
            break
        limit = _LOOK if missing else timedelta(seconds=trace_timeout_s)
        try:
            store.wait([f"{key_prefix}{other}{_TRACE}"], limit)
        except RuntimeError:
            missing.append(decoder(other))
    store.set(key_prefix + _GATE, "1")
    return missing

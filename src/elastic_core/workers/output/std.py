"""Which output streams of which workers an option means: `--redirects`, `--tee`, `--local-ranks-filter`."""

import enum
from collections.abc import Mapping
from typing import Any

from elastic_core.errors import ConfigError


class _StdType(enum.EnumType):
    """Lets `Std(entrypoint=…, …).run()` mean `launch(entrypoint=…, …)`, as older guides have it."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # an enum's call has many meanings already
        if "entrypoint" not in kwargs:
            return super().__call__(*args, **kwargs)
        from elastic_core.workers.std_launch import StdLaunch

        return StdLaunch(*args, **kwargs)


class Std(enum.IntFlag, metaclass=_StdType):
    """Output streams of a worker; the numbers are what users type."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3

    @classmethod
    def from_str(cls, vm: str) -> "Std | dict[int, Std]":
        """Return what a user typed, as torch does: one value for all ranks, or those of single ranks.

        Raises:
            ValueError: it is neither.
        """
        text = vm.strip()
        if text in _MEANINGS:
            return _MEANINGS[text]
        streams: dict[int, Std] = {}
        for item in text.split(","):
            rank, _, std = (part.strip() for part in item.partition(":"))
            if not (rank.isascii() and rank.isdigit()) or std not in _MEANINGS:
                raise ValueError(f"{vm!r}: {item.strip()!r} is not RANK:STD. Try: {_FORMS}")
            streams[int(rank)] = _MEANINGS[std]
        return streams


_MEANINGS = {str(std.value): std for std in (Std.NONE, Std.OUT, Std.ERR, Std.ALL)}
_FORMS = "give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), for single ranks as RANK:STD,… like 0:3,10:1"


def to_map(val_or_map: Std | Mapping[int, Std], local_world_size: int) -> dict[int, Std]:
    """Return the streams for every local rank: one value counts for all, a rank without one has `Std.NONE`."""
    if isinstance(val_or_map, int):
        return dict.fromkeys(range(local_world_size), Std(val_or_map))
    return {rank: Std(val_or_map.get(rank, Std.NONE)) for rank in range(local_world_size)}


def parse_std(value: str, nproc: int, *, option: str = "--redirects") -> dict[int, Std]:
    """Return the streams for every local rank, `Std.NONE` for those that `value` does not name.

    Raises:
        ConfigError: `value` is neither a number from 0 to 3 nor a list of `rank:number` with each rank of this node
            at most once.
    """
    text = value.strip()
    if text in _MEANINGS:
        return dict.fromkeys(range(nproc), _MEANINGS[text])
    streams = dict.fromkeys(range(nproc), Std.NONE)
    named: set[int] = set()
    for item in text.split(","):
        rank_text, colon, std_text = (part.strip() for part in item.partition(":"))
        if not colon or std_text not in _MEANINGS:
            raise ConfigError(f"{option} {value!r}: {item.strip()!r} is not RANK:STD", hint=_FORMS)
        rank = _parse_rank(rank_text, nproc, option=option, value=value)
        if rank in named:
            raise ConfigError(f"{option} {value!r}: local rank {rank} is given twice", hint="name each rank once")
        named.add(rank)
        streams[rank] = _MEANINGS[std_text]
    return streams


def parse_ranks(value: str, nproc: int, *, option: str = "--local-ranks-filter") -> frozenset[int] | None:
    """Return the local ranks that a comma-separated list names, None for an empty one (all ranks).

    Raises:
        ConfigError: something in the list is no local rank of this node.
    """
    if not value.strip():
        return None
    return frozenset(_parse_rank(item.strip(), nproc, option=option, value=value) for item in value.split(","))


def _parse_rank(text: str, nproc: int, *, option: str, value: str) -> int:
    digits = text.lstrip("0") or "0"
    if not (text.isascii() and text.isdigit()):
        what, hint = f"{text!r} is not a local rank", f"use numbers from 0 to {nproc - 1}"
    elif len(digits) > 9 or int(digits) >= nproc:
        what = f"there is no local rank {digits[:10]} among {nproc} workers"
        hint = f"use ranks from 0 to {nproc - 1}, or raise --nproc-per-node"
    else:
        return int(digits)
    raise ConfigError(f"{option} {value!r}: {what}", hint=hint)

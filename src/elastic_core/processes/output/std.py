"""Which output streams of which workers an option means: `--redirects`, `--tee`, `--local-ranks-filter`."""

import enum

from elastic_core.errors import ConfigError


class Std(enum.IntFlag):
    """Output streams of a worker; the numbers are what users type."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3


_MEANINGS = {str(std.value): std for std in (Std.NONE, Std.OUT, Std.ERR, Std.ALL)}
_FORMS = "give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), for single ranks as RANK:STD,… like 0:3,10:1"


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

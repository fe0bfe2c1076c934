"""Torch's `Std`: a selection of a worker's output streams."""

import enum
from collections.abc import Mapping
from typing import Any


class StdLaunch:
    """The arguments of `launch` in an older form: `Std(entrypoint=…, log_dir=…).run()`."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  # those of `launch`
        """Run nothing yet."""
        self._options = options

    def run(self) -> dict[int, Any]:
        """Run to the end, as `launch` does."""
        from elastic_torchrun.launcher import api  # which needs what this module has

        return api.launch(**self._options)


class _StdType(enum.EnumType):
    """Makes `Std(entrypoint=…, …).run()` the same as `launch(entrypoint=…, …)`, as in older guides."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # an enum's call has many meanings already
        if "entrypoint" not in kwargs:
            return super().__call__(*args, **kwargs)
        return StdLaunch(*args, **kwargs)


class Std(enum.IntFlag, metaclass=_StdType):
    """Output streams of a worker; the numbers are those that users type."""

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = 3

    @classmethod
    def from_str(cls, vm: str) -> "Std | dict[int, Std]":
        """Return the value of a typed text, as torch does: one for all ranks, or values of single ranks.

        Raises:
            ValueError: it is neither.
            TypeError: it is not a text.
        """
        if not isinstance(vm, str):
            raise TypeError(f"a stream is text such as '3' or '0:1,1:2', and {vm!r} is {type(vm).__name__}")
        text = vm.strip()
        if text in _MEANINGS:
            return _MEANINGS[text]
        streams: dict[int, Std] = {}
        for item in text.split(","):
            rank, _, std = (part.strip() for part in item.partition(":"))
            if not (rank.isascii() and rank.isdigit()) or std not in _MEANINGS:
                raise ValueError(f"{item.strip()!r} in {vm!r}; expected 0 to 3, or RANK:STD. Try: {_FORMS}")
            streams[int(rank)] = _MEANINGS[std]
        return streams


_MEANINGS = {str(std.value): std for std in (Std.NONE, Std.OUT, Std.ERR, Std.ALL)}
_FORMS = "give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), for single ranks as RANK:STD,… like 0:3,10:1"


def to_map(val_or_map: Std | Mapping[int, Std], local_world_size: int) -> dict[int, Std]:
    """Return the streams for every local rank. One value is for all; a rank without one has `Std.NONE`."""
    if isinstance(val_or_map, int):
        return dict.fromkeys(range(local_world_size), Std(val_or_map))
    return {rank: Std(val_or_map.get(rank, Std.NONE)) for rank in range(local_world_size)}

"""Reads torch's flight recorder and its tables of process groups, in a thread of the worker. Imports no torch."""

import os
import pickle
import re
import sys

from elastic_watch.recorder.group_states import Group

# Not from typing: training scripts import this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_DUMP = re.compile(r"_dump_(\w+)_trace")
_SIZE_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_TRIES = 5


class NotReadyError(Exception):
    """Torch is not imported, or not to its end."""


class Torch:
    """The modules of torch in this process, as far as they are imported.

    Raises:
        NotReadyError: torch has no process groups yet.
    """

    def __init__(self) -> None:
        self.torch = sys.modules.get("torch")
        self.c10d = sys.modules.get("torch.distributed.distributed_c10d")
        self._core: Any = getattr(getattr(self.torch, "_C", None), "_distributed_c10d", None)
        if not hasattr(self.c10d, "_world") or self._core is None:
            raise NotReadyError("torch.distributed is not imported, or not to its end")
        self._dumps: dict[str, Any] = {}
        """The functions that return the content of a recorder, by backend."""
        for name in sorted(dir(self._core)):
            if match := _DUMP.fullmatch(name):
                # The first one is of all backends without their own, of which only gloo records.
                self._dumps["gloo" if match[1] == "fr" else match[1]] = getattr(self._core, name)

    @property
    def version(self) -> str:
        """The version of torch."""
        return str(getattr(self.torch, "__version__", ""))

    @property
    def records(self) -> bool:
        """Whether the recorder is on. Torch reads the same variables when it makes its first group."""
        size = next((os.environ[name] for name in _SIZE_VARIABLES if os.environ.get(name)), "")
        try:
            return bool(self._dumps) and (not size or int(size) > 0)
        except ValueError:
            return False

    def traces(self) -> "list[dict[str, Any]]":
        """Return the content of each recorder, without stacks: with them, torch reads files for seconds."""
        return [pickle.loads(dump(True, False, False)) for dump in self._dumps.values()]

    def groups(self) -> list[Group]:
        """Return the groups of this process, in the order in which they were made."""
        for _ in range(_TRIES):
            try:
                return self._groups()
            except (RuntimeError, KeyError):  # the script makes or destroys a group
                continue
        raise NotReadyError("the process groups change all the time")

    def _groups(self) -> list[Group]:
        world: Any = self.c10d._world  # type: ignore[union-attr]  # checked above
        found = []
        for group, (backend, _) in list(world.pg_map.items()):
            members = list(world.pg_group_ranks[group])
            devices = _devices(str(world.pg_backend_config.get(group, "")) or str(backend))
            for name, device in devices.items():
                own = world.pg_names[group]
                found.append(
                    Group(
                        str(own),
                        description=str(getattr(group, "group_desc", "")),
                        backend=name,
                        members=members,
                        label=f"{own}:{name}" if len(devices) > 1 else str(own),
                        used=self._used(group, device),
                        records=name in self._dumps,
                    )
                )
        return found

    def _used(self, group: "Any", device: str) -> "int | None":  # noqa: ANN401  # torch's
        try:
            if device:
                group = group._get_backend(self.torch.device(device))  # type: ignore[union-attr]  # checked above
            return int(group._get_sequence_number_for_group())
        except Exception:  # noqa: BLE001  # a backend that does not count, or is not made yet
            return None


def _devices(text: str) -> dict[str, str]:
    """Return a device for each backend in a group's configuration, such as `cpu:gloo,cuda:nccl`. Empty means any."""
    pairs = [part.rpartition(":") for part in text.lower().split(",")]
    return {backend: device for device, _, backend in reversed(pairs)}

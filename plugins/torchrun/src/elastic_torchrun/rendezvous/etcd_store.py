"""Torch's store on etcd's v2 API, by name.

Importing this module imports torch, since the class inherits from a store of torch's. Torch is named in strings so that
the type checker needs no torch.
"""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from elastic_core.api import ConfigError, WaitBudget
from elastic_torchrun.rendezvous.etcd_client import import_etcd
from elastic_torchrun.torch_import import torch_distributed

_torch: Any = torch_distributed("EtcdStore")
_TRY_AGAIN_S: Final = 0.02
_LOOK_S: Final = 5.0
"""How long one watch lasts. Events that it has missed, as etcd discards them, are then found by a read."""


class EtcdStore(_torch.Store):  # type: ignore[misc]  # torch is not known to the type checker
    """Torch's key-value store on a client of python-etcd; keys and values are text or bytes.

    Args:
        etcd_client: python-etcd's `Client`.
        etcd_store_prefix: The directory of the keys, with or without a leading slash.
        timeout: How long `get` and `wait` wait. `None` means 300 s, as in all of torch's stores.
    """

    def __init__(self, etcd_client: Any, etcd_store_prefix: str, timeout: timedelta | None = None) -> None:  # noqa: ANN401  # has no types
        """Send no request yet."""
        super().__init__()
        self.client = etcd_client
        self.prefix = f"/{etcd_store_prefix.strip('/')}/"  # etcd names keys with the slash, whatever it was asked for
        self._etcd = import_etcd()
        if timeout is not None:
            self.set_timeout(timeout)

    def set(self, key: str | bytes, value: str | bytes) -> None:
        """Write a key."""
        self.client.set(self._name(key), _packed(value))

    def get(self, key: str | bytes) -> bytes:
        """Return a key's value; waits until the key exists.

        Raises:
            LookupError: it was not set in time.
        """
        return self._wait_for([key], self.timeout)[key]

    def add(self, key: str | bytes, num: int) -> int:
        """Add `num` to a number, which starts at 0, and return the sum."""
        while True:
            try:
                self.client.write(self._name(key), _packed(str(num)), prevExist=False)
            except self._etcd.EtcdAlreadyExist:
                found = self.client.read(self._name(key))
            else:
                return num
            raised = int(b64decode(found.value)) + num
            try:
                self.client.write(self._name(key), _packed(str(raised)), prevIndex=found.modifiedIndex)
            except (self._etcd.EtcdCompareFailed, self._etcd.EtcdKeyNotFound):
                WaitBudget().sleep(_TRY_AGAIN_S)  # another one was faster
                continue
            return raised

    def wait(self, keys: Sequence[str | bytes], override_timeout: timedelta | None = None) -> None:
        """Wait until all keys exist.

        Raises:
            LookupError: they were not set in time.
        """
        self._wait_for(keys, self.timeout if override_timeout is None else override_timeout)

    def check(self, keys: Sequence[str | bytes]) -> bool:
        """Return whether all keys exist now."""
        return len(self._look(keys)[0]) == len(set(keys))

    def delete_key(self, key: str | bytes) -> bool:
        """Delete a key. Return whether it existed."""
        try:
            self.client.delete(self._name(key))
        except self._etcd.EtcdKeyNotFound:
            return False
        return True

    def _name(self, key: str | bytes) -> str:
        return self.prefix + _packed(key)

    def _look(self, keys: Sequence[str | bytes]) -> tuple[dict[str | bytes, bytes], int]:
        """Return the values of the existing keys, and etcd's index at that time (0 means unknown)."""
        try:
            found = self.client.read(self.prefix)
        except self._etcd.EtcdKeyNotFound as error:  # etcd says at which index it found nothing
            return {}, (error.payload or {}).get("index", 0)
        values = {leaf.key: leaf.value for leaf in found.leaves if not leaf.dir}
        here = {key: b64decode(values[self._name(key)]) for key in keys if self._name(key) in values}
        return here, found.etcd_index

    def _wait_for(self, keys: Sequence[str | bytes], timeout: timedelta) -> dict[str | bytes, bytes]:
        end = WaitBudget.lasting(timeout.total_seconds())
        while True:
            here, index = self._look(keys)
            missing = [key for key in keys if key not in here]
            if not missing:
                return here
            left_s = end.remaining_s(_LOOK_S)
            if left_s <= 0:
                told = f"{missing[0]!r}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
                raise LookupError(f"EtcdStore: key {told} not there within {timeout.total_seconds():g} s")
            self._await_event(index, left_s)

    def _await_event(self, index: int, timeout_s: float) -> None:
        after = {"index": index + 1} if index else {}
        try:
            self.client.watch(self.prefix, recursive=True, timeout=timeout_s, **after)
        except (self._etcd.EtcdWatchTimedOut, self._etcd.EtcdEventIndexCleared):
            return


def _packed(value: str | bytes) -> str:
    if not isinstance(value, (str, bytes)):
        raise ConfigError(f"EtcdStore takes text and bytes, not {type(value).__name__}")
    return b64encode(value.encode() if isinstance(value, str) else value).decode()

"""What broken stores have in common: the list of them, and a way behind the server's counter."""

from dataclasses import dataclass

import msgspec

from elastic_core.api import API_VERSION
from elastic_plugin_kit import MemoryStore

replace = msgspec.structs.replace


@dataclass(frozen=True)
class Broken:
    cls: type[MemoryStore]
    caught_by: frozenset[str]


BROKEN: list[Broken] = []


def caught_by(named, *also, states_its_version=True):
    """Register a broken store: the test that names its defect, and all others that fail of it, without `test_`."""

    def register(cls):
        if states_its_version:
            cls.api_version = API_VERSION
        BROKEN.append(Broken(cls=cls, caught_by=frozenset(f"test_{name}" for name in (named, *also))))
        return cls

    return register


class Cracked(MemoryStore):
    """Lets a variant reach behind the server's counter."""

    api_version = API_VERSION

    def inside(self, work, name, wait):
        """Carry out `work(model, now_s)` as one request."""
        return self._server.call(name, self.settings.run_id, work, wait=self._ready(wait))

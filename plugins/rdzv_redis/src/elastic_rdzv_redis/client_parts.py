"""Imports of redis-py's connection without the rest of that package.

`import redis` also imports the asynchronous clients, all commands, clusters and sentinels, which this store does not
use: two fifths of the import's memory and a third of its time.
"""

import importlib
import importlib.util
import sys
import threading
from types import ModuleType
from typing import Final

_NAME: Final = "redis"
_PARTS: Final = ("redis.exceptions", "redis.retry", "redis.connection")
_loading = threading.RLock()


class _Package(ModuleType):
    """A package that executes its own code when an attribute is missing, so at the first use of anything else."""

    def __getattr__(self, name: str) -> object:
        # Python itself looks for names such as `__wrapped__`.
        if name.startswith("__") or self.__spec__ is None or self.__spec__.loader is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        with _loading:
            if type(self) is _Package:
                # From now on, a missing attribute is an error.
                self.__class__ = ModuleType  # type: ignore[assignment]  # its base class, with the same layout
                self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def import_parts() -> None:
    """Import the modules that this store uses, unless redis is imported already.

    Other code that imports redis gets the whole package. If a version of redis-py does not allow to import its parts
    alone, nothing is imported, and the usual import follows. Threading: any; a second thread waits.
    """
    with _loading:
        spec = None if _NAME in sys.modules else importlib.util.find_spec(_NAME)
        if spec is None:
            return
        package = importlib.util.module_from_spec(spec)
        package.__class__ = _Package
        sys.modules[_NAME] = package
        try:
            for part in _PARTS:
                importlib.import_module(part)
        except (ImportError, AttributeError):
            for name in [each for each in sys.modules if each == _NAME or each.startswith(f"{_NAME}.")]:
                del sys.modules[name]

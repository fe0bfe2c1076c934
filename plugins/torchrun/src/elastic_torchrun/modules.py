"""The modules below `elastic_core.compat`, made from the table of names. Each name is imported at its first use."""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

from elastic_torchrun.names import MAINS, NAMES, homes, is_package, torch_path

PREFIX = "elastic_core.compat."


class CompatFinder(MetaPathFinder, Loader):
    """Finds and makes the modules in the table; other finders find all others."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module of the table, else None."""
        name = fullname.removeprefix(PREFIX)
        if name == fullname or name not in NAMES:
            return None
        return ModuleSpec(fullname, self, origin="elastic_torchrun.names", is_package=is_package(name))

    def exec_module(self, module: ModuleType) -> None:
        """Set a module's exports, and the function that imports them."""
        name = module.__name__.removeprefix(PREFIX)
        known = homes(name)

        def fetch(attribute: str) -> object:
            if attribute not in known:
                raise AttributeError(f"module {module.__name__!r} has no attribute {attribute!r}")
            value = getattr(importlib.import_module(known[attribute]), attribute)
            setattr(module, attribute, value)
            return value

        content = {"__all__": sorted(known), "__getattr__": fetch, "__dir__": lambda: sorted({*vars(module), *known})}
        vars(module).update(content, __doc__=f"`{torch_path(name)}`, by ours.")

    def get_code(self, fullname: str) -> CodeType:
        """The code that `python -m` runs."""
        main = MAINS.get(fullname.removeprefix(PREFIX))
        text = f"from {main} import process\nprocess()\n" if main else ""
        return compile(text, f"<{fullname}>", "exec")


def install() -> None:
    """Make `elastic_core.compat`'s modules importable."""
    if not any(isinstance(finder, CompatFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, CompatFinder())

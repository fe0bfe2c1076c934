"""The path that the kit for plugin authors had before it was a distribution: each module below it is the kit's own.

Not a copy of it: a class must be one and the same under both names, for `isinstance` and for pytest.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from elastic_plugin_kit import *  # noqa: F403

_KIT: Final = "elastic_plugin_kit"


class _SameModule(MetaPathFinder, Loader):
    """Gives `elastic_core.testing.x` the module `elastic_plugin_kit.x`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname.startswith(f"{__name__}.") else None

    def exec_module(self, module: ModuleType) -> None:
        """Put the kit's module in the place of the empty one: the import system takes what it finds there."""
        name = module.__name__
        sys.modules[name] = importlib.import_module(_KIT + name.removeprefix(__name__))


try:
    sys.modules[__name__] = importlib.import_module(_KIT)
except ModuleNotFoundError as err:
    if err.name != _KIT:
        raise
    from elastic_core.plugins.missing import install_hint

    needed = f"elastic-plugin-kit: {install_hint('elastic-plugin-kit')}"
    raise ModuleNotFoundError(f"{__name__} comes with {needed}", name=_KIT) from None
sys.meta_path.insert(0, _SameModule())

"""Imports one plugin and checks it."""

import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

from elastic_core.errors import ElasticError
from elastic_core.failure.handler import FailureHandler
from elastic_core.hooks.handler import AgentHook, fault_of_powers
from elastic_core.moments import Power
from elastic_core.option_spec import OptionSpec
from elastic_core.plugin_faults import text_of
from elastic_core.plugins.discovery import (
    ENVIRONMENTS_GROUP,
    FAILURE_GROUP,
    HOOKS_GROUP,
    OPTIONS_GROUP,
    RENDEZVOUS_GROUP,
    PluginEntry,
    is_built_in,
)
from elastic_core.plugins.entry_import import (
    HEAVY_MODULES,
    Limit,
    import_entry,
    limit_of,
    limited,
    plugin_refusal,
    too_heavy,
)
from elastic_core.rendezvous.coordinated import Backend
from elastic_core.rendezvous.handler import RendezvousHandler
from elastic_core.rendezvous.store import CoordinationStore
from elastic_core.types import HookSettings, PolicySettings, RendezvousSettings

if TYPE_CHECKING:
    from elastic_core.plugins.environment import Environment
    from elastic_core.plugins.hookspecs import HookimplModule

BASES: Final[dict[str, tuple[type, ...]]] = {
    RENDEZVOUS_GROUP: (RendezvousHandler, CoordinationStore),
    FAILURE_GROUP: (FailureHandler,),
    HOOKS_GROUP: (AgentHook,),
    OPTIONS_GROUP: (AgentHook,),
}
"""The base classes of each group's plugins: a plugin has one of these."""
INTERFACES: Final = frozenset((*BASES, ENVIRONMENTS_GROUP))
"""The groups whose plugins are classes of an interface."""
Maker = Callable[[Any], object]
"""A class or function, called with the settings of its group."""
# The methods of a hook that return objects.
_OBJECTS: Final = ("worker_starter", "master_server")


def bases_of(group: str) -> tuple[type, ...]:
    """Return the base classes of a group's plugins."""
    if group != ENVIRONMENTS_GROUP:
        return BASES[group]
    from elastic_core.plugins.environment import Environment  # few runs need it

    return (Environment,)


class LoadedPlugin:
    """A plugin that was imported and checked.

    It is a class, a module of hookimpls, or a function of this process that makes a rendezvous handler.
    """

    def __init__(self, entry: PluginEntry, limit: Limit, target: object = None) -> None:
        """Import the plugin and check it.

        `limit` is for its import, and then for its constructor. `target` is the object if code of this process
        has registered it; `None` means that the entry point is imported.

        Raises:
            PluginError: The import raised or was late, the kind or `api_version` is wrong, or options or powers are
                invalid.
        """
        self.entry = entry
        self._limit = limit_of(entry, limit)
        self._target: object = import_entry(entry, limit=self._limit) if target is None else target
        self.is_class = isinstance(self._target, type)
        self.is_module = isinstance(self._target, ModuleType)
        _check_kind(entry, self._target, or_function=target is not None)
        if (self.is_class or self.is_module) and not is_built_in(entry):
            self._check_declarations()
        self._maker = _wired(entry, self._target) if self.is_module else _ClassMaker(cast("Maker", self._target))
        if entry.group in (HOOKS_GROUP, OPTIONS_GROUP):
            self._check_powers()

    def _check_declarations(self) -> None:
        from elastic_core.plugins.declaration_faults import check_api_version, fault_of_options

        check_api_version(self.entry, self._target)
        if fault := fault_of_options(self.options):
            raise plugin_refusal(self.entry, f"{self._name} {fault}")

    @property
    def _name(self) -> str:
        return self._target.__qualname__ if isinstance(self._target, type) else self.entry.value

    @property
    def options(self) -> Sequence[OptionSpec]:
        """The `options` of the class or module."""
        options: Sequence[OptionSpec] | ModuleType = getattr(self._target, "options", ())
        return () if isinstance(options, ModuleType) else options  # a package may have a module named `options`

    @property
    def powers(self) -> tuple[str, ...]:
        """The names of a hook's powers. Empty if it states none."""
        stated: frozenset[Power] = getattr(self._target, "powers", frozenset())
        return tuple(sorted(power.value for power in stated))

    @property
    def docstring(self) -> str:
        """The docstring of the class, or of the module."""
        return self._target.__doc__ or ""

    @property
    def fail_closed(self) -> bool:
        """Whether it is a health gate that refuses when it fails."""
        return getattr(self._target, "fail_closed", False) is True

    def _check_powers(self) -> None:
        target = self._target
        stated: object = getattr(target, "powers", frozenset())
        fault = fault_of_powers(stated, self._maker.moments, closed=self.fail_closed)
        if fault:
            raise plugin_refusal(self.entry, f"{self._name} {fault}")

    @property
    def is_store(self) -> bool:
        """Whether it is the class of a store. For a module, this is known only from what it makes."""
        return isinstance(self._target, type) and issubclass(self._target, CoordinationStore)

    def make_rendezvous(self, settings: RendezvousSettings) -> Backend | CoordinationStore:
        """Build the backend, or its store.

        Raises:
            PluginError: It raised, or returned another object.
            ElasticError: The plugin rejects the settings.
        """
        made = build(self.entry, self._limit, lambda: self._maker.make_rendezvous(settings))
        return made if isinstance(made, (Backend, CoordinationStore)) else self._refuse_product(made)

    def make_handler(self, settings: RendezvousSettings) -> Backend:
        """Build the handler of a function, which makes no stores. Raises as `make_rendezvous`."""
        made = self.make_rendezvous(settings)
        return made if isinstance(made, Backend) else self._refuse_product(made)

    def make_policy(self, settings: PolicySettings) -> FailureHandler:
        """Build the policy. Raises as `make_rendezvous`."""
        made = build(self.entry, self._limit, lambda: self._maker.make_policy(settings))
        return made if isinstance(made, FailureHandler) else self._refuse_product(made)

    def make_hook(self, settings: HookSettings) -> AgentHook:
        """Build the hook; for a module of hookimpls, one that calls it. Raises as `make_rendezvous`."""
        made = build(self.entry, self._limit, lambda: self._maker.make_hook(settings))
        return made if isinstance(made, AgentHook) else self._refuse_product(made)

    def make_environment(self, variables: Mapping[str, str]) -> "Environment":
        """Build the environment. Raises as `make_rendezvous`."""
        cls = cast("Callable[[Mapping[str, str]], object]", self._target)
        made = build(self.entry, self._limit, lambda: cls(variables))
        if not isinstance(made, bases_of(self.entry.group)):
            self._refuse_product(made)
        title = getattr(made, "title", None)
        if not isinstance(title, str) or not title.strip():
            what = f"{self.entry.value} has title {title!r}; expected what people call it"
            raise plugin_refusal(self.entry, what)
        return cast("Environment", made)

    def _refuse_product(self, made: object) -> NoReturn:
        what = f"{self.entry.value} made {type(made).__name__}; expected a {base_names(self.entry.group)}"
        raise plugin_refusal(self.entry, what)


def base_names(group: str) -> str:
    """Return the base classes of a group's plugins, for messages: `RendezvousHandler or CoordinationStore`."""
    return " or ".join(base.__name__ for base in bases_of(group))


class _ClassMaker:
    # A class makes one kind of object, so all three methods are the same.
    def __init__(self, cls: Maker) -> None:
        self.make_rendezvous: Callable[[RendezvousSettings], object] = cls
        self.make_policy: Callable[[PolicySettings], object] = cls
        self.make_hook: Callable[[HookSettings], object] = cls
        own = {name for name in dir(cls) if name.startswith("on_") or name in _OBJECTS}
        self.moments = frozenset(n for n in own if getattr(cls, n) is not getattr(AgentHook, n, None))


def _wired(entry: PluginEntry, module: object) -> "HookimplModule":
    from elastic_core.plugins.hookspecs import HookimplModule  # imports pluggy, which classes do not need

    return HookimplModule(entry, cast("ModuleType", module))


def build(entry: PluginEntry, limit: Limit | None, make: Callable[[], object], what: str = "building it") -> object:
    """Call a plugin's constructor. ElasticErrors pass; other exceptions become one line with its distribution."""
    try:
        return limited(entry, what, make, limit)
    except ElasticError:
        raise
    except (Exception, SystemExit) as err:
        raise plugin_refusal(entry, f"{what} raised {text_of(err, entry.value)}") from err


def _check_kind(entry: PluginEntry, target: object, *, or_function: bool) -> None:
    by_module = entry.group != ENVIRONMENTS_GROUP
    if isinstance(target, type):
        fits = issubclass(target, bases_of(entry.group))
    else:
        fits = by_module if isinstance(target, ModuleType) else or_function and callable(target)
    if fits:
        return
    found = f"the class {target.__qualname__}" if isinstance(target, type) else f"an object of {type(target).__name__}"
    or_module = ", or a module with hookimpls" if by_module else ""
    what = f"{entry.value} is {found}; expected a subclass of {base_names(entry.group)}{or_module}"
    raise plugin_refusal(entry, what)


def heavy_modules() -> frozenset[str]:
    """Return the modules of `HEAVY_MODULES` that this process has imported."""
    return frozenset(name for name in HEAVY_MODULES if name in sys.modules)


def refuse_heavy(entry: PluginEntry, before: frozenset[str]) -> None:
    """Reject a plugin that has imported heavy modules, except those in `before`.

    Raises:
        PluginError: The plugin has imported some.
    """
    dragged = sorted(heavy_modules() - before)
    if dragged:
        names = " and ".join(dragged)
        raise too_heavy(entry, names)


def check_plugin(entry: PluginEntry, *, within_s: float = 5.0) -> None:
    """Load a plugin as a run does.

    Args:
        entry: The plugin.
        within_s: The most seconds of its import.

    Raises:
        PluginError: A run would reject it because of its kind, `api_version`, options or powers.
    """
    LoadedPlugin(entry, Limit(within_s))

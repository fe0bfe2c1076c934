"""Imports one plugin and checks that it is what its entry point says."""

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
    mend,
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
"""What a class of each group derives from: one of these."""
INTERFACES: Final = frozenset((*BASES, ENVIRONMENTS_GROUP))
"""The groups whose plugins are classes of an interface."""
Maker = Callable[[Any], object]
"""A class or function, called with the settings of its group."""
_OBJECTS: Final = ("worker_starter", "master_server")
"""The methods of a hook that give objects."""


def bases_of(group: str) -> tuple[type, ...]:
    """Return what a class of a group derives from: one of these."""
    if group != ENVIRONMENTS_GROUP:
        return BASES[group]
    from elastic_core.plugins.environment import Environment  # which most runs have nothing to do with

    return (Environment,)


class LoadedPlugin:
    """A plugin that was loaded and found sound, whichever way it came.

    It is a class, a module of hookimpls, or a function of this process that makes a rendezvous handler.
    """

    def __init__(self, entry: PluginEntry, limit: Limit, target: object = None) -> None:
        """Import the plugin and check it.

        Args:
            entry: What was found.
            limit: How long its import may take, and then its constructor.
            target: What code of this process has brought; `None` means that the entry point is imported.

        Raises:
            PluginError: it can't be imported, or not in time; it is of no accepted kind; it was written for another
                version of the interfaces; or it declares options or powers wrongly.
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
            raise plugin_refusal(self.entry, f"{self._name} {fault}", hint=mend(self.entry))

    @property
    def _name(self) -> str:
        return self._target.__qualname__ if isinstance(self._target, type) else self.entry.value

    @property
    def options(self) -> Sequence[OptionSpec]:
        """What the class, or the module, declares as `options`."""
        options: Sequence[OptionSpec] | ModuleType = getattr(self._target, "options", ())
        return () if isinstance(options, ModuleType) else options  # a package may have a module of that name

    @property
    def powers(self) -> tuple[str, ...]:
        """The powers of a hook, by name; of one that states none, none."""
        stated: frozenset[Power] = getattr(self._target, "powers", frozenset())
        return tuple(sorted(power.value for power in stated))

    @property
    def docstring(self) -> str:
        """The docstring of the class, or of the module."""
        return self._target.__doc__ or ""

    @property
    def fail_closed(self) -> bool:
        """Whether it is a health gate that refuses where it breaks."""
        return getattr(self._target, "fail_closed", False) is True

    def _check_powers(self) -> None:
        target = self._target
        stated: object = getattr(target, "powers", frozenset())
        fault = fault_of_powers(stated, self._maker.moments, closed=self.fail_closed)
        if fault:
            raise plugin_refusal(self.entry, f"{self._name} {fault}", hint=mend(self.entry))

    @property
    def is_store(self) -> bool:
        """Whether it is the class of a store; what a module makes shows only when it is made."""
        return isinstance(self._target, type) and issubclass(self._target, CoordinationStore)

    def make_rendezvous(self, settings: RendezvousSettings) -> Backend | CoordinationStore:
        """Build the backend, or the store for one.

        Raises:
            PluginError: it raised, or gave something else.
            ElasticError: the plugin's own word on the settings.
        """
        made = build(self.entry, self._limit, lambda: self._maker.make_rendezvous(settings))
        return made if isinstance(made, (Backend, CoordinationStore)) else self._refuse_product(made)

    def make_handler(self, settings: RendezvousSettings) -> Backend:
        """Build the handler of a function, which makes no stores. Raises as `make_rendezvous`."""
        made = self.make_rendezvous(settings)
        return made if isinstance(made, Backend) else self._refuse_product(made)

    def make_policy(self, settings: PolicySettings) -> FailureHandler:
        """Build the policy; raises as `make_rendezvous` does."""
        made = build(self.entry, self._limit, lambda: self._maker.make_policy(settings))
        return made if isinstance(made, FailureHandler) else self._refuse_product(made)

    def make_hook(self, settings: HookSettings) -> AgentHook:
        """Build the observer; a module of hookimpls becomes one that forwards to it. Raises as `make_rendezvous`."""
        made = build(self.entry, self._limit, lambda: self._maker.make_hook(settings))
        return made if isinstance(made, AgentHook) else self._refuse_product(made)

    def make_environment(self, variables: Mapping[str, str]) -> "Environment":
        """Build the environment; raises as `make_rendezvous`."""
        cls = cast("Callable[[Mapping[str, str]], object]", self._target)
        made = build(self.entry, self._limit, lambda: cls(variables))
        if not isinstance(made, bases_of(self.entry.group)):
            self._refuse_product(made)
        title = getattr(made, "title", None)
        if not isinstance(title, str) or not title.strip():
            what = f"{self.entry.value} has title {title!r}; expected what people call it"
            raise plugin_refusal(self.entry, what, hint=mend(self.entry))
        return cast("Environment", made)

    def _refuse_product(self, made: object) -> NoReturn:
        what = f"{self.entry.value} made {type(made).__name__}; expected a {base_names(self.entry.group)}"
        raise plugin_refusal(self.entry, what, hint=mend(self.entry))


def base_names(group: str) -> str:
    """Return what the plugins of a group are made of, for messages: `RendezvousHandler or CoordinationStore`."""
    return " or ".join(base.__name__ for base in bases_of(group))


class _ClassMaker:
    """Builds the one kind of object that a class or function makes, whichever it is asked for."""

    def __init__(self, cls: Maker) -> None:
        self.make_rendezvous: Callable[[RendezvousSettings], object] = cls
        self.make_policy: Callable[[PolicySettings], object] = cls
        self.make_hook: Callable[[HookSettings], object] = cls
        own = {name for name in dir(cls) if name.startswith("on_") or name in _OBJECTS}
        self.moments = frozenset(n for n in own if getattr(cls, n) is not getattr(AgentHook, n, None))


def _wired(entry: PluginEntry, module: object) -> "HookimplModule":
    from elastic_core.plugins.hookspecs import HookimplModule  # pluggy: not for classes

    return HookimplModule(entry, cast("ModuleType", module))


def build(entry: PluginEntry, limit: Limit | None, make: Callable[[], object], what: str = "building it") -> object:
    """Call a plugin's constructor; its own ElasticErrors pass, all else becomes one line with its distribution."""
    try:
        return limited(entry, what, make, limit)
    except ElasticError:
        raise
    except (Exception, SystemExit) as err:
        raise plugin_refusal(entry, f"{what} raised {text_of(err, entry.value)}", hint=mend(entry)) from err


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
    raise plugin_refusal(entry, what, hint=mend(entry))


def heavy_modules() -> frozenset[str]:
    """Return which of `HEAVY_MODULES` this process has."""
    return frozenset(name for name in HEAVY_MODULES if name in sys.modules)


def refuse_heavy(entry: PluginEntry, before: frozenset[str]) -> None:
    """Refuse a plugin that has brought one of them; `before`: those that were there.

    Raises:
        PluginError: it has.
    """
    dragged = sorted(heavy_modules() - before)
    if dragged:
        names = " and ".join(dragged)
        raise too_heavy(entry, names)


def check_plugin(entry: PluginEntry, *, within_s: float = 5.0) -> None:
    """Load a plugin as a run does.

    Args:
        entry: The plugin.
        within_s: How long its import may take.

    Raises:
        PluginError: a run would refuse it: its kind, its `api_version`, its options or its powers.
    """
    LoadedPlugin(entry, Limit(within_s))

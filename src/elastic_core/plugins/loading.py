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
    refusal,
    too_heavy,
)
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
_OBJECTS: Final = ("worker_starter", "master_server")
"""The methods of a hook that give objects."""


def bases_of(group: str) -> tuple[type, ...]:
    """Return what a class of a group derives from: one of these."""
    if group != ENVIRONMENTS_GROUP:
        return BASES[group]
    from elastic_core.plugins.environment import Environment  # which most runs have nothing to do with

    return (Environment,)


class LoadedPlugin:
    """A plugin that was imported and found sound: a class, or a module of hookimpls."""

    def __init__(self, entry: PluginEntry, limit: Limit) -> None:
        """Import the plugin and check it.

        Args:
            entry: What was found.
            limit: How long its import may take, and then its constructor.

        Raises:
            PluginError: it can't be imported, or not in time; it is of no accepted kind, or was written for another
                version of the interfaces.
        """
        self.entry = entry
        self._limit = limit_of(entry, limit)
        self._target: object = import_entry(entry, limit=self._limit)
        _check_kind(entry, self._target)
        self.deprecated: tuple[str, ...] = ()
        """A line for the user of a plugin that was written for a version of the interfaces that is deprecated."""
        self.misnamed: tuple[str, ...] = ()
        """A line for each method that nothing calls though its name looks so."""
        if not is_built_in(entry):
            self._check_declarations()
        self._maker = _ClassMaker(self._target) if isinstance(self._target, type) else _wired(entry, self._target)
        if entry.group in (HOOKS_GROUP, OPTIONS_GROUP):
            self._check_powers()

    def _check_declarations(self) -> None:
        from elastic_core.plugins.declaration_faults import check_api_version, fault_of_methods, fault_of_options

        self.deprecated = check_api_version(self.entry, self._target)
        target, base = self._target, self._base
        fault = fault_of_options(self.options)
        if not fault and base is not None and isinstance(target, type):
            fault = fault_of_methods(target, base)
        if fault:
            raise refusal(self.entry, f"{self._name} {fault}", hint=mend(self.entry))
        self.misnamed = self.misnamed_methods()

    def misnamed_methods(self, *, every: bool = False) -> tuple[str, ...]:
        """A line for each method that nothing calls though its name looks so; `every`: as in `elastic plugins`."""
        target, base = self._target, self._base
        if base is None or not isinstance(target, type):
            return ()
        from elastic_core.plugins.declaration_faults import misnamed_methods

        lines = []
        for name, near in misnamed_methods(target, base, every=every):
            what = f"nothing calls {self._name}.{name}: {base.__name__} has no such method"
            lines.append(str(refusal(self.entry, what, hint=" or ".join(near) or "another name")))
        return tuple(lines)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know of the plugin, a line each."""
        return self.deprecated + self.misnamed

    @property
    def _name(self) -> str:
        return self._target.__qualname__ if isinstance(self._target, type) else self.entry.value

    @property
    def _base(self) -> type | None:
        """The interface that the class derives from; None: it is a module."""
        target = self._target
        bases = bases_of(self.entry.group) if isinstance(target, type) else ()
        return next((base for base in bases if issubclass(cast("type", target), base)), None)

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
    def fail_closed(self) -> bool:
        """Whether it is a health gate that refuses where it breaks."""
        return getattr(self._target, "fail_closed", False) is True

    def _check_powers(self) -> None:
        target = self._target
        stated: object = getattr(target, "powers", frozenset())
        fault = fault_of_powers(
            getattr(target, "api_version", None), stated, self._maker.moments, closed=self.fail_closed
        )
        if fault:
            raise refusal(self.entry, f"{self._name} {fault}", hint=mend(self.entry))

    @property
    def is_class(self) -> bool:
        """Whether it is a class, not a module."""
        return isinstance(self._target, type)

    @property
    def is_store(self) -> bool:
        """Whether it is the class of a store; what a module makes shows only when it is made."""
        return is_store_class(self._target)

    def make_rendezvous(self, settings: RendezvousSettings) -> RendezvousHandler | CoordinationStore:
        """Build the backend, or the store for one.

        Raises:
            PluginError: it raised, or gave something else.
            ElasticError: the plugin's own word on the settings.
        """
        made = build(self.entry, self._limit, lambda: self._maker.make_rendezvous(settings))
        return made if isinstance(made, (RendezvousHandler, CoordinationStore)) else self._refuse_product(made)

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
            what = f"{self.entry.value} has title {title!r}; what people call it is needed"
            raise refusal(self.entry, what, hint=mend(self.entry))
        return cast("Environment", made)

    def _refuse_product(self, made: object) -> NoReturn:
        what = f"{self.entry.value} made {type(made).__name__}; a {base_names(self.entry.group)} is needed"
        raise refusal(self.entry, what, hint=mend(self.entry))


def is_store_class(target: object) -> bool:
    """Return whether this is a class of stores, around which the core puts its rendezvous."""
    return isinstance(target, type) and issubclass(target, CoordinationStore)


def base_names(group: str) -> str:
    """Return what the plugins of a group are made of, for messages: `RendezvousHandler or CoordinationStore`."""
    return " or ".join(base.__name__ for base in bases_of(group))


class _ClassMaker:
    """Builds the one kind of object that a class makes, whichever it is asked for."""

    def __init__(self, cls: Callable[[Any], object]) -> None:
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
        raise refusal(entry, f"{what} raised {text_of(err, entry.value)}", hint=mend(entry)) from err


def _check_kind(entry: PluginEntry, target: object) -> None:
    by_module = entry.group != ENVIRONMENTS_GROUP
    if (by_module and isinstance(target, ModuleType)) or (
        isinstance(target, type) and issubclass(target, bases_of(entry.group))
    ):
        return
    found = f"the class {target.__qualname__}" if isinstance(target, type) else f"an object of {type(target).__name__}"
    or_module = ", or a module with hookimpls," if by_module else ""
    what = f"{entry.value} is {found}; a subclass of {base_names(entry.group)}{or_module} is needed"
    raise refusal(entry, what, hint=mend(entry))


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


def plugin_remarks(entry: PluginEntry, *, within_s: float = 5.0) -> tuple[str, ...]:
    """Load a plugin as a run does, and return a line for each thing that people are told of it.

    An `api_version` that is deprecated, say, or a method that nothing calls though its name is nearly that of a moment.

    Args:
        entry: The plugin.
        within_s: How long its import may take.

    Raises:
        PluginError: a run would refuse it: its options, its methods' signatures, its `api_version`.
    """
    plugin = LoadedPlugin(entry, Limit(within_s))
    return (*plugin.deprecated, *plugin.misnamed_methods(every=True))

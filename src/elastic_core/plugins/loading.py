"""Imports one plugin and checks that it is what its entry point says."""

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final, NoReturn

import pluggy

from elastic_core.errors import ElasticError, PluginError
from elastic_core.failure.handler import FailureHandler
from elastic_core.hooks.handler import AgentHook
from elastic_core.plugins import hookspecs
from elastic_core.plugins.discovery import PluginEntry
from elastic_core.plugins.missing import FAILURE_GROUP, HOOKS_GROUP, KINDS, RENDEZVOUS_GROUP
from elastic_core.rendezvous.handler import RendezvousHandler
from elastic_core.types import API_VERSION, HookSettings, OptionSpec, PolicySettings, RendezvousSettings

SUPPORTED_API: Final = range(1, API_VERSION + 1)

IN_CODE: Final = "in code"
"""Stands for the distribution of what was registered in code."""

BASES: Final[dict[str, type]] = {
    RENDEZVOUS_GROUP: RendezvousHandler,
    FAILURE_GROUP: FailureHandler,
    HOOKS_GROUP: AgentHook,
}
"""What a class of each group derives from."""

MOMENTS: Final = tuple(name for name in vars(AgentHook) if name.startswith("on_"))
_IMPLS: Final[dict[str, tuple[str, ...]]] = {
    RENDEZVOUS_GROUP: ("elastic_make_rendezvous",),
    FAILURE_GROUP: ("elastic_make_failure_handler",),
    HOOKS_GROUP: MOMENTS,
}


class LoadedPlugin:
    """A plugin that was imported and found sound, behind a pluggy manager of its own.

    One manager each: a plugin is asked only for what the user chose it for, and one's trouble is not another's.
    """

    def __init__(self, entry: PluginEntry) -> None:
        """Import the plugin and check it.

        Raises:
            PluginError: it can't be imported, is of no accepted kind, or was written for another version of the
                interfaces.
        """
        self.entry = entry
        self._target: object = _import(entry)
        _check_kind(entry, self._target)
        _check_api_version(entry, self._target)
        self._manager = self._wire()

    @property
    def options(self) -> Sequence[OptionSpec]:
        """What the class, or the module, declares as `options`."""
        options: Sequence[OptionSpec] = getattr(self._target, "options", ())
        return options

    def make_rendezvous(self, settings: RendezvousSettings) -> RendezvousHandler:
        """Build the backend.

        Raises:
            PluginError: it raised, or gave something else.
            ElasticError: the plugin's own word on the settings.
        """
        made = build(self.entry, lambda: self._manager.hook.elastic_make_rendezvous(settings=settings))
        return made if isinstance(made, RendezvousHandler) else self._refuse_product(made)

    def make_policy(self, settings: PolicySettings) -> FailureHandler:
        """Build the policy; raises as `make_rendezvous` does."""
        made = build(self.entry, lambda: self._manager.hook.elastic_make_failure_handler(settings=settings))
        return made if isinstance(made, FailureHandler) else self._refuse_product(made)

    def make_hook(self, settings: HookSettings) -> AgentHook:
        """Build the observer; a module of hookimpls becomes one that forwards to it. Raises as `make_rendezvous`."""
        target = self._target
        if not isinstance(target, type):
            return _forwarder(self._manager)(settings)
        made = build(self.entry, lambda: target(settings))
        return made if isinstance(made, AgentHook) else self._refuse_product(made)

    def _wire(self) -> pluggy.PluginManager:
        manager = pluggy.PluginManager(hookspecs.PROJECT_NAME)
        manager.add_hookspecs(hookspecs)
        plugin = _ClassPlugin(self._target) if isinstance(self._target, type) else self._target
        try:
            manager.register(plugin, name=self.entry.name)
            manager.check_pending()
        except pluggy.PluginValidationError as err:
            raise refusal(self.entry, f"its hookimpls don't fit: {one_line(err)}", hint=_mend(self.entry)) from err
        implemented = any(_implementers(manager, name) for name in _IMPLS[self.entry.group])
        if not implemented and not isinstance(self._target, type):
            wanted = " or ".join(_IMPLS[self.entry.group][:2])
            what = f"module {self.entry.value} implements none of this group's hooks"
            raise refusal(self.entry, what, hint=f"mark a function such as {wanted} with elastic_core.api.hookimpl")
        return manager

    def _refuse_product(self, made: object) -> NoReturn:
        base = BASES[self.entry.group].__name__
        what = f"{self.entry.value} made {type(made).__name__}; a {base} is needed"
        raise refusal(self.entry, what, hint=_mend(self.entry))


class _ClassPlugin:
    """Makes a pluggy plugin of a class, whichever of the kinds it is."""

    def __init__(self, cls: Callable[[Any], Any]) -> None:
        self._cls = cls

    @hookspecs.hookimpl
    def elastic_make_rendezvous(self, settings: RendezvousSettings) -> object:
        return self._cls(settings)

    @hookspecs.hookimpl
    def elastic_make_failure_handler(self, settings: PolicySettings) -> object:
        return self._cls(settings)


def build(entry: PluginEntry, make: Callable[[], object]) -> object:
    """Call a plugin's constructor; its own ElasticErrors pass, all else becomes one line with its distribution."""
    try:
        return make()
    except ElasticError:
        raise
    except (Exception, SystemExit) as err:
        raise refusal(entry, f"building it raised {_told(err)}", hint=_mend(entry)) from err


def refusal(entry: PluginEntry, what: str, *, hint: str) -> PluginError:
    """Return an error that names the plugin and its distribution."""
    off = f", or turn it off: -p no:{entry.name}" if entry.group == HOOKS_GROUP else ""
    return PluginError(f"{KINDS[entry.group]} {entry.name!r} ({entry.label}): {what}", hint=f"{hint}{off}")


def one_line(err: BaseException) -> str:
    """Return an exception's text without its line breaks."""
    return " ".join(str(err).split())


def _told(err: BaseException) -> str:
    return f"{type(err).__name__}: {one_line(err)}".removesuffix(": ")


def _mend(entry: PluginEntry) -> str:
    if entry.distribution == IN_CODE:
        return f"look at {entry.value}"
    return f"pip install --upgrade {entry.distribution}, or report it to its authors"


def _import(entry: PluginEntry) -> object:
    module_name, _, attributes = entry.value.partition(":")
    try:
        target: object = importlib.import_module(module_name.strip())
        for attribute in filter(None, attributes.strip().split(".")):
            target = getattr(target, attribute)
    except (Exception, SystemExit) as err:
        raise refusal(entry, f"importing {entry.value} raised {_told(err)}", hint=_mend(entry)) from err
    return target


def _check_kind(entry: PluginEntry, target: object) -> None:
    base = BASES[entry.group]
    if isinstance(target, ModuleType) or (isinstance(target, type) and issubclass(target, base)):
        return
    found = f"the class {target.__qualname__}" if isinstance(target, type) else f"an object of {type(target).__name__}"
    what = f"{entry.value} is {found}; a subclass of {base.__name__}, or a module with hookimpls, is needed"
    raise refusal(entry, what, hint=_mend(entry))


def _check_api_version(entry: PluginEntry, target: object) -> None:
    """Read what the plugin itself states: an inherited number says nothing about what its author had in mind."""
    needed = str(API_VERSION) if len(SUPPORTED_API) == 1 else f"{SUPPORTED_API[0]} to {SUPPORTED_API[-1]}"
    own = vars(target)
    name = target.__qualname__ if isinstance(target, type) else entry.value
    if "api_version" not in own:
        what = f"{name} states no api_version of its own; {needed} is needed"
        raise refusal(entry, what, hint=f"api_version = {API_VERSION} in {name}")
    version = own["api_version"]
    if type(version) is not int or version not in SUPPORTED_API:
        what = f"{name} states api_version {version!r}; {needed} is needed"
        newer = type(version) is int and version > API_VERSION
        raise refusal(entry, what, hint=f"pip install --upgrade {'elastic-core' if newer else entry.distribution}")
    abstract = sorted(getattr(target, "__abstractmethods__", ()))
    if abstract:
        raise refusal(entry, f"{name} does not define {', '.join(abstract)}", hint=_mend(entry))


def _implementers(manager: pluggy.PluginManager, name: str) -> set[object]:
    return {impl.plugin for impl in getattr(manager.hook, name).get_hookimpls()}


def _forwarder(manager: pluggy.PluginManager) -> type[AgentHook]:
    """Return a class that overrides just the moments that a module implements: the others cost nothing."""
    members = {name: _forward(name, manager) for name in MOMENTS if _implementers(manager, name)}
    return type("HookimplModule", (AgentHook,), members)


def _forward(name: str, manager: pluggy.PluginManager) -> Callable[[AgentHook, object], object]:
    caller = getattr(manager.hook, name)

    def forward(self: AgentHook, event: object) -> object:
        answer: object = caller(event=event)
        return answer

    return forward

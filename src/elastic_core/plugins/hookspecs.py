"""The pluggy specifications that a plugin module may implement, the marker for its functions, and their calls.

Imported only if a plugin is such a module: pluggy costs 5 ms.

A plugin of the group `elastic_core.rendezvous` or `elastic_core.failure` implements the function that makes its object.
A plugin of `elastic_core.hooks` implements moments: the methods of `AgentHook` are their specifications. Every such
module states `api_version` at its top level, as classes do.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Final

import pluggy

from elastic_core.failure.handler import FailureHandler
from elastic_core.hooks.handler import AgentHook
from elastic_core.plugins.discovery import FAILURE_GROUP, HOOKS_GROUP, RENDEZVOUS_GROUP, PluginEntry
from elastic_core.plugins.entry_import import plugin_refusal
from elastic_core.rendezvous.handler import RendezvousHandler
from elastic_core.rendezvous.store import CoordinationStore
from elastic_core.types import HookSettings, PolicySettings, RendezvousSettings

PROJECT_NAME: Final = "elastic_core"

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)
"""Marks a function of a plugin module as the implementation of the specification that has its name."""


@hookspec(firstresult=True)
def elastic_make_rendezvous(settings: RendezvousSettings) -> RendezvousHandler | CoordinationStore | None:
    """Build the rendezvous backend, or the store for one.

    Called: once per run, after options are validated, before any worker exists.
    """


@hookspec(firstresult=True)
def elastic_make_failure_handler(settings: PolicySettings) -> FailureHandler | None:
    """Build the restart policy. Called: once per run, after options are validated, before any worker exists."""


# --- wiring

_MOMENTS: Final = tuple(name for name in vars(AgentHook) if name.startswith("on_"))
for _name in _MOMENTS:
    hookspec(firstresult=_name in ("on_joining", "on_workers_starting"))(getattr(AgentHook, _name))
_IMPLS: Final[dict[str, tuple[str, ...]]] = {
    RENDEZVOUS_GROUP: ("elastic_make_rendezvous",),
    FAILURE_GROUP: ("elastic_make_failure_handler",),
    HOOKS_GROUP: _MOMENTS,
}


class HookimplModule:
    """A plugin module with a pluggy manager of its own.

    One manager per module: a plugin is called only for what the user chose it for, and its errors do not affect others.
    """

    def __init__(self, entry: PluginEntry, module: ModuleType) -> None:
        """Register the module.

        Raises:
            PluginError: Its hookimpls match no specification, or none of its group.
        """
        manager = pluggy.PluginManager(PROJECT_NAME)
        manager.add_hookspecs(sys.modules[__name__])
        manager.add_hookspecs(AgentHook)
        try:
            manager.register(module, name=entry.name)
            manager.check_pending()
        except pluggy.PluginValidationError as err:
            raise plugin_refusal(entry, f"its hookimpls don't fit: {' '.join(str(err).split())}") from err
        self._manager = manager
        self._module = module
        if not any(map(self._implements, _IMPLS[entry.group])):
            wanted = " or ".join(_IMPLS[entry.group][:2])
            what = f"module {entry.value} implements none of this group's hooks"
            raise plugin_refusal(
                entry, what, hint=f"mark a function such as {wanted} with elastic_core.api.plugins.hookimpl"
            )

    def _implements(self, name: str) -> bool:
        return bool(getattr(self._manager.hook, name).get_hookimpls())

    @property
    def moments(self) -> frozenset[str]:
        """The moments that the module implements, by the names of `AgentHook`'s methods."""
        return frozenset(name for name in _MOMENTS if self._implements(name))

    def make_rendezvous(self, settings: RendezvousSettings) -> object:
        """Return the result of the module's function, unchecked."""
        made: object = self._manager.hook.elastic_make_rendezvous(settings=settings)
        return made

    def make_policy(self, settings: PolicySettings) -> object:
        """Return the result of the module's function, unchecked."""
        made: object = self._manager.hook.elastic_make_failure_handler(settings=settings)
        return made

    def make_hook(self, settings: HookSettings) -> AgentHook:
        """Return a hook that overrides only the moments that the module implements: the others cost nothing."""
        members: dict[str, object] = {name: _forward(getattr(self._manager.hook, name)) for name in self.moments}
        members |= {"api_version": self._module.api_version, "powers": getattr(self._module, "powers", frozenset())}
        members |= {"fail_closed": getattr(self._module, "fail_closed", False)}
        forwarding: type[AgentHook] = type("ForwardingHook", (AgentHook,), members)
        return forwarding(settings)


def _forward(caller: Callable[..., object]) -> Callable[[AgentHook, object], object]:
    def forward(self: AgentHook, event: object) -> object:
        return caller(event=event)

    return forward

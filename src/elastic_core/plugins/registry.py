"""The installed plugins, and the objects that the chosen ones make.

Listing reads metadata only. A plugin is imported if it is chosen by name, and a hook if it is installed.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from elastic_core.errors import ConfigError, ElasticError, PluginError, nearest
from elastic_core.failure.handler import FailureHandler
from elastic_core.hooks.handler import ShutGate, notices_of
from elastic_core.hooks.members import NamedHook
from elastic_core.moments import Power
from elastic_core.option_spec import OptionSpec
from elastic_core.plugin_faults import PluginFaults, PluginLabel
from elastic_core.plugins.conversion import TORCH_RDZV_KEYS, GivenValue, convert, parse, resolve_options
from elastic_core.plugins.discovery import (
    FAILURE_GROUP,
    HOOKS_GROUP,
    KINDS,
    OPTIONS_GROUP,
    RENDEZVOUS_GROUP,
    PluginEntry,
    find_entries,
)
from elastic_core.plugins.entry_import import (
    CHOSEN_LIMIT,
    HOOK_LIMIT,
    IN_CODE,
    entry_at,
    label_of,
    only_claim,
    plugin_refusal,
)
from elastic_core.plugins.loading import INTERFACES, LoadedPlugin, heavy_modules, refuse_heavy
from elastic_core.rendezvous import registry as in_code
from elastic_core.rendezvous.coordinated import Backend
from elastic_core.rendezvous.store import CoordinationStore
from elastic_core.types import HookSettings, PolicySettings, RendezvousSettings

if TYPE_CHECKING:
    from elastic_core.plugins.hook_flags import ChosenHook


_CONNECT_TIMEOUT: Final = OptionSpec(name="connect_timeout", type="duration")
FAIL_CLOSED: Final = OptionSpec(name="fail_closed", type="bool")
"""An option that users can give to every hook that can refuse: `-p NAME:fail_closed=true`."""


class PluginRegistry:
    """The plugins of this Python environment.

    Threading: one thread; loading imports code and may block.
    """

    def __init__(
        self,
        *,
        disabled: Sequence[str] = (),
        hooks: Mapping[str, Mapping[str, str]] = {},
        faults: PluginFaults | None = None,
    ) -> None:
        """Store the user's choices; plugins are found later.

        `disabled` are hooks that the user turned off (`-p no:NAME`). `hooks` has options of hooks by name, as typed
        (`-p NAME:KEY=VALUE`); a hook that is given by place is turned on by it. Without `faults`, exceptions of
        plugins that are left out are kept for this registry alone.
        """
        self.disabled = frozenset(disabled)
        self._named = dict(hooks)
        self._faults = PluginFaults() if faults is None else faults
        self._limit = CHOSEN_LIMIT
        self._found: list[PluginEntry] | None = None
        self._warnings: list[str] = []

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings from making the backend and the policy, such as options without effect."""
        return tuple(self._warnings)

    # --- the chosen ones

    def make_rendezvous(self, name: str, settings: RendezvousSettings, conf: Mapping[str, str]) -> Backend:
        """Build the chosen backend with its options.

        `settings` lack the options, which `conf` has as typed (`--rdzv-conf`). A backend registered in code
        overrides an installed one.

        Raises:
            PluginError: No backend or two distributions have the name, or the backend is broken.
            ConfigError: An option is unknown or malformed, or the backend rejects the settings.
        """
        limit_s = parse(conf.get("connect_timeout", ""), _CONNECT_TIMEOUT)  # invalid ones are rejected below
        if isinstance(limit_s, float):
            self._limit = self._limit._replace(within_s=limit_s)
        plugin = self._backend(name)
        if not (plugin.is_class or plugin.is_module):  # a handler for torch reads its options itself
            return plugin.make_handler(replace(settings, options=dict(conf)))
        # Only what a module makes shows whether it is a store, so the options of all stores wait.
        shared = _shared_keys(conf, plugin.options) if plugin.is_module else {}
        own = {key: text for key, text in conf.items() if key not in shared}
        full = self._with_options(settings, _options_of(plugin), own)
        made = plugin.make_rendezvous(full)
        if not isinstance(made, CoordinationStore):
            if shared:
                self._with_options(settings, plugin.options, shared)  # not a store: unknown options, or torch's
            return made
        from elastic_core.plugins.coordination import coordinate  # needed for several nodes only

        return coordinate(made, full, shared)

    def _backend(self, name: str) -> LoadedPlugin:
        # Order: registered in code, installed or given by place, written for torch.
        registered = in_code.registered(name)
        if registered is not None:
            return self._loaded(_entry_in_code(RENDEZVOUS_GROUP, name, registered), registered)
        hosted = self._hosted_entry(name)
        if hosted is not None:
            from elastic_core.plugins.hosted import adapted  # needed for torch's handlers only

            return self._loaded(hosted, adapted(hosted, self._limit))
        return self._loaded(self._entry(RENDEZVOUS_GROUP, name))

    def make_policy(self, name: str, settings: PolicySettings, conf: Mapping[str, str]) -> FailureHandler:
        """Build the chosen restart policy with its options (`--policy-conf`).

        Its time limit is that of the backend, which must be made first.

        Raises:
            PluginError: No policy or two distributions have the name, or the policy is broken.
            ConfigError: An option is unknown or malformed, or the policy rejects the settings.
        """
        entry = self._entry(FAILURE_GROUP, name)
        before = heavy_modules()
        plugin = self._loaded(entry)
        refuse_heavy(entry, before)
        resolved = resolve_options(conf, plugin.options, flag="--policy-conf", owner=f"policy {name!r}")
        policy = plugin.make_policy(replace(settings, options=resolved.values, lists=resolved.lists))
        refuse_heavy(entry, before)
        return policy

    def check_options(self, group: str, name: str, conf: Mapping[str, str]) -> None:
        """Reject options that a backend's or policy's class does not declare, without building it (`--dry-run`).

        Raises:
            PluginError: The plugin is not installed, or it is broken.
            ConfigError: An option is unknown or malformed.
        """
        if group == FAILURE_GROUP:
            specs = self._loaded(self._entry(group, name)).options
            resolve_options(conf, specs, flag="--policy-conf", owner=f"policy {name!r}")
        elif in_code.registered(name) is not None or self._hosted_entry(name) is None:  # loading torch's takes seconds
            plugin = self._backend(name)
            if plugin.is_class:
                self._with_options(RendezvousSettings(run_id="", backend=name), _options_of(plugin), conf)

    def make_hooks(
        self, settings: HookSettings, options: Mapping[str, GivenValue] = {}
    ) -> tuple[list[NamedHook], list[str]]:
        """Build every installed hook that is not turned off, and those that options choose.

        An installed hook that no option chose is left out, with a line, if it is broken, if two distributions have its
        name, or if it imports torch or numpy (unless this process had them before, as in a notebook).

        `settings` lack name and options; `options` are the given options of hooks, by name.

        Raises:
            PluginError: A hook that an option chose is broken.
            ConfigError: Such a hook rejects its settings.
        """
        hooks: list[NamedHook] = []
        chosen = _chosen_hooks(options)
        warnings = self._needlessly_disabled(choice.entry.name for choice in chosen)
        for entry in self._hook_entries():
            own = next((choice.values for choice in chosen if choice.entry.value == entry.value), {})
            try:
                hooks.append(self._make_hook(entry, settings, own))
            except ElasticError as err:
                closed = self._closed(entry)
                if own or (self._typed_for(entry) is not None and (not closed or isinstance(err, ConfigError))):
                    raise
                self.keep(entry, err)
                gate = self._shut_gate(entry, settings, err, closed=closed)
                hooks += [] if gate is None else [gate]
                warnings.append(f"left out: {err}" if gate is None else f"{err}; it is a gate that fails closed")
        hooks += self._make_chosen(settings, options)
        warnings += [line for named in hooks for line in notices_of(named.hook)]
        return hooks, warnings

    def _shut_gate(
        self, entry: PluginEntry, settings: HookSettings, err: ElasticError, *, closed: bool
    ) -> NamedHook | None:
        # A hook that fails closed, by the user's option or its class, is replaced by a gate that refuses.
        try:
            closed = closed or self._loaded(entry).fail_closed
        except ElasticError:  # its class cannot be read
            return None
        if not closed:
            return None
        gate = ShutGate(replace(settings, name=entry.name), reason=f"it could not be built: {err.what}")
        return NamedHook(name=entry.name, distribution=entry.label, hook=gate)

    def _closed(self, entry: PluginEntry) -> bool:
        # The user's option overrides the class.
        text = (self._typed_for(entry) or {}).get(FAIL_CLOSED.name, "")
        return bool(text) and convert(text, FAIL_CLOSED, flag=f"-p {entry.name}:") is True

    def keep(self, entry: PluginEntry, err: ElasticError) -> None:
        """Keep the exception of a plugin that is left out."""
        if isinstance(err, PluginError) and err.__cause__ is not None:
            self._faults.raised(label_of(entry), f"loading {entry.value}", err.__cause__)

    def make_chosen_hooks(self, settings: HookSettings, options: Mapping[str, GivenValue]) -> list[NamedHook]:
        """Build the hooks that options choose or users named. Raises as `make_hooks`.

        Hooks that are on in every run are left out, unless one of their options was given.
        """
        on = self._hook_entries()
        named = [entry for entry in on if self._typed_for(entry) is not None]
        rest = {entry.value for entry in on if entry not in named}
        return [self._make_hook(entry, settings, {}) for entry in named] + self._make_chosen(settings, options, rest)

    def _make_chosen(
        self, settings: HookSettings, options: Mapping[str, GivenValue], on: Collection[str] = ()
    ) -> list[NamedHook]:
        always = {entry.value for entry in self.entries() if entry.group == HOOKS_GROUP}.difference(on)
        chosen = [(choice.entry, choice.values) for choice in _chosen_hooks(options)]
        chosen = [(entry, own) for entry, own in chosen if entry.name not in self.disabled]
        chosen += [(entry, {}) for entry in self._placed_hooks()]
        return [self._make_hook(entry, settings, own) for entry, own in chosen if entry.value not in always]

    def _placed_hooks(self) -> list[PluginEntry]:
        # A name that is neither installed nor a place raises PluginError.
        installed = [entry for entry in self.entries() if entry.group == HOOKS_GROUP]
        found = []
        for name in self._named.keys() - {entry.name for entry in installed}:
            entry = entry_at(HOOKS_GROUP, name)
            if entry is None:
                from elastic_core.plugins.missing import not_installed

                raise not_installed(HOOKS_GROUP, name, installed)
            found.append(entry)
        return sorted(found)

    def _typed_for(self, entry: PluginEntry) -> Mapping[str, str] | None:
        # By name or place. `None` if the user did not name the hook.
        return self._named.get(entry.name, self._named.get(entry.value))

    def _make_hook(self, entry: PluginEntry, settings: HookSettings, given: Mapping[str, GivenValue]) -> NamedHook:
        self.refuse_doubles(entry.group, entry.name)
        before = heavy_modules()
        plugin = self._loaded(entry)
        refuse_heavy(entry, before)
        undeclared = given.keys() - {spec.name for spec in plugin.options}
        if undeclared:
            what = f"{entry.value} has no option {min(undeclared)!r} in `options`"
            raise plugin_refusal(entry, what)
        typed = (entry.group == HOOKS_GROUP and self._typed_for(entry)) or {}
        closed = False
        if typed and FAIL_CLOSED.name not in {spec.name for spec in plugin.options}:
            closed = self._closed(entry)
            typed = {name: text for name, text in typed.items() if name != FAIL_CLOSED.name}
        owner = f"{KINDS[entry.group]} {entry.name!r}"
        resolved = resolve_options(typed, plugin.options, flag=f"-p {entry.name}:", owner=owner)
        lists = {name: value for name, value in given.items() if isinstance(value, tuple)}
        single = {name: value for name, value in given.items() if not isinstance(value, tuple)}
        options, lists = {**resolved.values, **single}, {**resolved.lists, **lists}
        own = replace(settings, name=entry.name, options=options, lists=lists)
        hook = plugin.make_hook(own)
        if closed and Power.REFUSAL not in hook.powers:
            what = f"-p {entry.name}:{FAIL_CLOSED.name}: {owner} is no health gate: it has not the power to refuse"
            raise ConfigError(what, hint=f"leave {FAIL_CLOSED.name} out")
        if entry.group == HOOKS_GROUP:
            refuse_heavy(entry, before)  # modules that option values import are the user's choice
        hint = label_of(entry).hint
        return NamedHook(name=entry.name, distribution=entry.label, hook=hook, hint=hint, fail_closed=closed)

    def _with_options(
        self, settings: RendezvousSettings, specs: Sequence[OptionSpec], conf: Mapping[str, str]
    ) -> RendezvousSettings:
        owner = f"rendezvous backend {settings.backend!r}"
        resolved = resolve_options(conf, specs, flag="--rdzv-conf", owner=owner, tolerated=TORCH_RDZV_KEYS)
        self._warnings += resolved.warnings
        return replace(settings, options=resolved.values, lists=resolved.lists)

    def _loaded(self, entry: PluginEntry, target: object = None) -> LoadedPlugin:
        return LoadedPlugin(entry, HOOK_LIMIT if entry.group in (HOOKS_GROUP, OPTIONS_GROUP) else self._limit, target)

    def label(self, group: str, name: str) -> PluginLabel:
        """Return a chosen plugin's label for lines."""
        if group != RENDEZVOUS_GROUP:
            return label_of(self._entry(group, name))
        registered = in_code.registered(name)
        if registered is not None:
            return label_of(_entry_in_code(group, name, registered))
        return label_of(self._hosted_entry(name) or self._entry(group, name))

    # --- entry points

    def entries(self) -> list[PluginEntry]:
        """Return the entry points of the interfaces' groups."""
        if self._found is None:
            self._found = [entry for entry in find_entries() if entry.group in INTERFACES]
        return self._found

    def _entry(self, group: str, name: str) -> PluginEntry:
        if (place := entry_at(group, name)) is not None:
            return place
        self.refuse_doubles(group, name)
        of_group = [entry for entry in self.entries() if entry.group == group]
        for entry in of_group:
            if entry.name == name:
                return entry
        names = in_code.registered_names() if group == RENDEZVOUS_GROUP else ()
        others = self.hosted() if group == RENDEZVOUS_GROUP else []
        from elastic_core.plugins.missing import not_installed  # for mistyped names only

        raise not_installed(group, name, [*of_group, *others], names)

    def _hosted_entry(self, name: str) -> PluginEntry | None:
        # Names of our backends are never torch's. Two distributions with the name raise PluginError.
        if any((entry.group, entry.name) == (RENDEZVOUS_GROUP, name) for entry in self.entries()):
            return None
        return only_claim(entry for entry in self.hosted() if entry.name == name)

    def hosted(self) -> list[PluginEntry]:
        """Return the handlers for torch that can be used here."""
        from elastic_core.plugins.hosted import find_hosted

        return find_hosted(self.entries())

    def refuse_doubles(self, group: str, name: str) -> None:
        """Reject a name that several distributions have.

        Raises:
            PluginError: Several distributions have it.
        """
        only_claim(entry for entry in self.entries() if (entry.group, entry.name) == (group, name))

    def _hook_entries(self) -> list[PluginEntry]:
        # Each name once, sorted.
        hooks = {e.name: e for e in self.entries() if e.group == HOOKS_GROUP and e.name not in self.disabled}
        return [hooks[name] for name in sorted(hooks)]

    def _needlessly_disabled(self, chosen: Iterable[str]) -> list[str]:
        hooks = {entry.name for entry in self.entries() if entry.group == HOOKS_GROUP}.union(chosen)
        lines = []
        for name in sorted(self.disabled - hooks):
            near = nearest(name, hooks)
            meant = f"; did you mean {near!r}?" if near else ""
            lines.append(f"-p no:{name} has no effect: no hook of that name is installed{meant}")
        return lines


def _chosen_hooks(options: Mapping[str, GivenValue]) -> "list[ChosenHook]":
    if not options:
        return []
    from elastic_core.plugins.hook_flags import chosen_hooks  # only for a run with such options

    return chosen_hooks(options)


def _shared_keys(conf: Mapping[str, str], declared: Sequence[OptionSpec]) -> Mapping[str, str]:
    if not conf:
        return {}
    from elastic_core.plugins.coordination import shared_keys

    return shared_keys(conf, declared)


def _options_of(plugin: LoadedPlugin) -> Sequence[OptionSpec]:
    # A store's class also accepts the options of all stores.
    if not plugin.is_store:
        return plugin.options
    from elastic_core.plugins.coordination import store_options

    return store_options(plugin.options)


def _entry_in_code(group: str, name: str, maker: Callable[..., object]) -> PluginEntry:
    return PluginEntry(group, name, in_code.describe(maker), IN_CODE, "")

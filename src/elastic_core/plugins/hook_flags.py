"""Options of `elastic run` from installed hooks: found by metadata, imported when they are given."""

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from elastic_core.errors import ElasticError, PluginError
from elastic_core.option_spec import RunOption
from elastic_core.plugins.conversion import GivenValue
from elastic_core.plugins.discovery import OPTIONS_GROUP, PluginEntry, find_entries
from elastic_core.plugins.entry_import import HOOK_LIMIT, import_entry, limit_of, only_claim, plugin_refusal
from elastic_core.plugins.missing import known_options, option_not_installed
from elastic_core.types import Record

CORE_FLAGS: Final = frozenset(
    """
    agent-port allow-mismatch connect-timeout debug-rank devices dry-run duplicate-stderr-filters
    duplicate-stdout-filters environment exit-timeout fatal-exit-codes h help help-all join-timeout local-addr
    local-ranks-filter log-backups log-dir log-line-prefix-template log-max-size log-times logs-specs m master-addr
    master-port max-membership-changes max-restarts module monitor-interval nnodes no-python no-worker-hooks
    node-id node-rank nproc-per-node omp-threads on-store-loss p plugin policy policy-conf preemption-signal
    print-completion r rdzv-attempt rdzv-backend rdzv-conf rdzv-endpoint rdzv-id redirects restart-backoff
    restart-window role run-dir run-path same-failure-limit shutdown-timeout signals-to-handle spares standalone
    start-method store-outage-grace t tee v verbose virtual-local-rank
    """.split()  # noqa: SIM905  # a list of names would fill a page
)
"""Names of the core's own flags, long and short, which plugins cannot use. A test compares them with its options."""


class HookOptions:
    """The options of a set of entry points.

    Entries of other groups than `elastic_core.options` are ignored.
    """

    def __init__(self, entries: Sequence[PluginEntry]) -> None:
        self._entries = [entry for entry in entries if entry.group == OPTIONS_GROUP]
        self._loaded: dict[str, RunOption] = {}

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags without their dashes. No plugin is imported."""
        return tuple(sorted({entry.name for entry in self._entries if not entry.name.isupper()} - CORE_FLAGS))

    def load(self, flag: str) -> RunOption | None:
        """Return one option. `None` if no installed distribution has it.

        `flag` is without dashes, or the torch variable that sets the option.

        Raises:
            PluginError: Two distributions have it, or its declaration is broken.
        """
        if flag not in self._loaded and (entry := self.claimed(flag)) is not None:
            self._loaded[flag] = _declared(entry)
        return self._loaded.get(flag)

    def hook(self, name: str) -> PluginEntry | None:
        """Return the hook that an option chooses, given by a flag or by a variable. Raises as `load`."""
        variables = (entry.name for entry in self._entries if entry.name.isupper())
        for each in (name.replace("_", "-"), *variables):
            option, entry = self.load(each), self.claimed(each)
            if option is not None and entry is not None and option.name == name:
                return hook_entry(entry)
        return None

    def claimed(self, name: str) -> PluginEntry | None:
        """Return the entry point of a flag or variable. Raises as `load` if two distributions have it."""
        return only_claim(entry for entry in self._entries if entry.name == name and name not in CORE_FLAGS)

    def load_all(self) -> tuple[list[RunOption], list[str]]:
        """Return all valid options, and a line for each invalid one, for help and completion."""
        found: list[RunOption] = []
        lines = [str(_of_the_core(entry)) for entry in self._entries if entry.name in CORE_FLAGS]
        for flag in self.flags:
            try:
                option = self.load(flag)
            except ElasticError as err:
                lines.append(str(err))
            else:
                found += [] if option is None else [option]
        return found, lines


def installed_options() -> HookOptions:
    """Return the options that are installed in this Python environment."""
    return _installed(tuple(sys.path))


@lru_cache(maxsize=1)
def _installed(path: tuple[str, ...]) -> HookOptions:
    return HookOptions(find_entries(OPTIONS_GROUP))


def _of_the_core(entry: PluginEntry) -> PluginError:
    dashes = "-" if len(entry.name) == 1 else "--"
    return plugin_refusal(entry, f"{dashes}{entry.name} is a flag of elastic run itself; expected another name")


def _declared(entry: PluginEntry) -> RunOption:
    if entry.name in CORE_FLAGS:
        raise _of_the_core(entry)
    declared = import_entry(entry, limit=limit_of(entry, HOOK_LIMIT))
    fault = _fault(declared, entry.name)
    if fault or not isinstance(declared, RunOption):
        raise plugin_refusal(entry, f"{entry.value} {fault}")
    return replace(declared, heading=declared.heading or entry.distribution)


def _fault(declared: object, flag: str) -> str:
    if not isinstance(declared, RunOption):
        return f"is {type(declared).__name__}; expected a RunOption"
    if not isinstance(declared.hook_name, str) or set(declared.hook_name) & set(" ,:='\"\t\n"):
        return f"has hook_name {declared.hook_name!r}; expected a word, or nothing"
    if not declared.hook:
        return "has no hook; expected 'package.module:Class'"
    if flag.isupper() and declared.variable != flag:
        return f"has variable {declared.variable!r}; expected {flag!r}"
    if not flag.isupper() and declared.flag != flag:
        return f"is named {declared.name!r}; expected {flag.replace('-', '_')!r}"
    from elastic_core.plugins.declaration_faults import fault_of_option  # needed only if an option is used

    fault = fault_of_option(declared)
    return f"is an option {fault}" if fault else ""


class ChosenHook(Record, frozen=True, kw_only=True):
    """A hook that options chose, its entry with its class and name, and the values of its options."""

    entry: PluginEntry
    values: Mapping[str, GivenValue]


def chosen_hooks(options: Mapping[str, GivenValue]) -> list[ChosenHook]:
    """Return the hooks of the given options, each once."""
    found: dict[str, ChosenHook] = {}
    for name, value in sorted(options.items()):  # sorted: the hook's name must not depend on the order of options
        hook = installed_options().hook(name)
        if hook is None and name.replace("_", "-") in known_options():
            raise option_not_installed(name.replace("_", "-"))
        if hook is not None:
            earlier = found.get(hook.value, ChosenHook(entry=hook, values={}))
            found[hook.value] = replace(earlier, values={**earlier.values, name: value})
    return list(found.values())


def hook_entry(entry: PluginEntry) -> PluginEntry:
    """Return an option's entry with the class and name of its hook.

    Raises:
        PluginError: The declaration is broken.
    """
    declared = _declared(entry)
    return entry._replace(name=declared.hook_name or declared.flag, value=declared.hook)

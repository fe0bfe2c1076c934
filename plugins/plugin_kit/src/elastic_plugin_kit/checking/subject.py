"""The plugin that is checked: how it is found, and how a kit has one of it made."""

import os
import posix
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import click

from elastic_core.api import (
    AgentHook,
    ConfigError,
    CoordinationStore,
    ElasticError,
    Environment,
    FailureHandler,
    HookSettings,
    PluginError,
    PolicySettings,
    RendezvousHandler,
    WaitBudget,
)
from elastic_core.api.plugins import (
    PluginEntry,
    check_plugin,
    find_entries,
    import_entry,
    plugin_refusal,
    resolve_options,
)
from elastic_core.api.rendezvous import RendezvousConnectionError
from elastic_core.api.stores import BackendUnavailableError, WaitExpiredError
from elastic_plugin_kit.checking.declarations import fault_of_methods, misnamed_methods
from elastic_plugin_kit.settings import rendezvous_settings

CALL_S: Final = 30.0
"""How long an import, a constructor or the first look for a server may take."""
HOOK_CALL_S: Final = 5.0
"""As long as a hook's may in a run, which goes on without it."""
CONNECT_S: Final = 10.0
GROUPS: Final = {
    "rendezvous": "elastic_core.rendezvous",
    "failure": "elastic_core.failure",
    "hook": "elastic_core.hooks",
    "environment": "elastic_core.environments",
    "command": "elastic_core.commands",
}
"""The kinds that have a kit, as `elastic plugins new` calls them."""
_NOUNS: Final = {**{kind: kind for kind in GROUPS}, "rendezvous": "backend", "failure": "policy"}
_KINDS: Final = {group: kind for kind, group in GROUPS.items()}
_SUITES: Final[dict[type, tuple[str, str]]] = {
    CoordinationStore: ("TestStore", "rendezvous"),
    RendezvousHandler: ("TestHandler", "rendezvous"),
    FailureHandler: ("TestPolicy", "failure"),
    AgentHook: ("TestHook", "hook"),
    Environment: ("TestEnvironment", "environment"),
}
"""The suite of each interface, and the kind of its plugins."""
_NOT_INSTALLED: Final = "not installed"
"""Stands for the distribution of a class that is named by its place, as in the core."""
_FLAGS: Final = {"rendezvous": "--rdzv-conf", "failure": "--policy-conf", "hook": "--hook-conf"}
"""Where the options of each kind are given."""


class CallHangs(PluginError):
    """A call of the plugin's has not returned in time."""


class Subject:
    """One plugin, its options given."""

    def __init__(
        self, entry: PluginEntry, *, endpoint: str, conf: Mapping[str, str], variables: Mapping[str, str]
    ) -> None:
        """Import it.

        Raises:
            PluginError: it can't be imported, or is nothing that a kit is for.
            ConfigError: an option of it can't be.
        """
        self.entry = entry
        self.kind = _KINDS[entry.group]
        self._endpoint = endpoint
        self.variables = {**os.environ, **variables}
        """Of an environment: what it is built with, as far as it has not been set otherwise here."""
        self.shown_by = entry.name if entry.distribution != _NOT_INSTALLED else next(iter(variables), "")
        target = imported(entry)
        self.suite, _ = _suite_of(target)
        if not self.suite or (self.kind == "command") != (self.suite == "TestCommand"):
            found = f"the class {target.__qualname__}" if isinstance(target, type) else f"a {type(target).__name__}"
            raise plugin_refusal(entry, f"{entry.value} is {found}; the kits are for classes, and for commands")
        self._cls = cast("Any", target)  # each maker knows which interface it is
        self._given: Mapping[str, Any] = {}
        self._hung = ""
        if self.kind not in {"command", "environment"}:
            owner = f"{_NOUNS[self.kind]} {entry.name!r}"
            resolved = resolve_options(conf, self._cls.options, flag=_FLAGS[self.kind], owner=owner)
            self._given = {"options": resolved.values, "lists": resolved.lists}

    @property
    def label(self) -> str:
        """Its name for people."""
        label = f" ({self.entry.label})" if self.entry.distribution != _NOT_INSTALLED else ""
        return f"{_NOUNS[self.kind]} {self.entry.name!r}{label}"

    def loaded(self) -> tuple[str, ...]:
        """Load it as a run does, and return a line for each method that nothing calls though its name looks so.

        Raises:
            PluginError: a run would refuse it, or one of its methods can't be called.
        """
        if self.kind == "command":
            return ()
        check_plugin(self.entry, within_s=CALL_S)
        cls, base = self._cls, next(base for base in _SUITES if issubclass(self._cls, base))
        if fault := fault_of_methods(cls, base):
            raise plugin_refusal(self.entry, f"{cls.__qualname__} {fault}")
        return tuple(
            str(
                plugin_refusal(
                    self.entry,
                    f"nothing calls {cls.__qualname__}.{name}: {base.__name__} has no such method",
                    hint=" or ".join(near) or "another name",
                )
            )
            for name, near in misnamed_methods(cls, base)
        )

    def store(self, run_id: str) -> CoordinationStore:
        """Return a new client of a run."""
        return cast("CoordinationStore", self._rendezvous(run_id=run_id))

    def handler(self, **given: Any) -> RendezvousHandler:  # noqa: ANN401  # fields of RendezvousSettings
        """Return a new handler of one node."""
        return cast("RendezvousHandler", self._rendezvous(**given))

    def _rendezvous(self, **given: Any) -> object:  # noqa: ANN401  # fields of RendezvousSettings
        settings = rendezvous_settings(backend=self.entry.name, endpoint=self._endpoint, **self._given, **given)
        return self._built(settings)

    def _built(self, settings: object) -> object:
        if self._hung:  # the next would hang as well
            raise CallHangs(self._hung)
        try:
            return timed(self.entry, "building it", lambda: self._cls(settings))
        except CallHangs as err:
            self._hung = str(err)
            raise

    def policy(self, max_restarts: int) -> FailureHandler:
        """Return a new policy."""
        settings = PolicySettings(name=self.entry.name, max_restarts=max_restarts, **self._given)
        return cast("FailureHandler", self._built(settings))

    def hook(self, run_dir: str) -> AgentHook:
        """Return a new hook."""
        settings = HookSettings(name=self.entry.name, run_id="check", run_dir=run_dir, **self._given)
        return cast("AgentHook", self._built(settings))

    def environment(self, variables: Mapping[str, str]) -> Environment:
        """Return a new environment."""
        return cast("Environment", self._built(variables))

    def reach(self) -> None:
        """See that a store's server is there, or that an environment shows.

        Raises:
            ElasticError: it is not, or will not serve us; the endpoint or an option can't be.
        """
        if self.kind == "environment" and not self.variables.get(self.shown_by):
            what = f"{self.label} does not show here" if self.shown_by else "nothing says which variable shows it"
            hint = f"--variable {self.shown_by or 'NAME'}=VALUE first, then the others, as they are where it does"
            raise ConfigError(what, hint=hint)
        if self.suite == "TestStore":
            store = self.store("check")
            try:
                timed(self.entry, "connect", lambda: store.connect(wait=WaitBudget.lasting(CONNECT_S)))
            except (BackendUnavailableError, WaitExpiredError) as err:
                what = f"no server to check {self.label} at: {err.what if isinstance(err, ElasticError) else err}"
                raise RendezvousConnectionError(what, hint="--rdzv-endpoint, where its live server is") from err
            finally:
                store.close()


def imported(entry: PluginEntry) -> object:
    """Return what an entry point names, within a time; raises as `timed` does."""
    return timed(entry, f"importing {entry.value}", lambda: import_entry(entry))


def timed(entry: PluginEntry, what: str, call: Callable[[], object]) -> object:
    """Return what a call of a plugin gives, within a time.

    Raises:
        CallHangs: it takes too long; its thread is left to itself then.
        BaseException: what it raised.
    """
    ended: list[tuple[object, BaseException | None]] = []

    def work() -> None:
        try:
            ended.append((call(), None))
        except BaseException as err:  # noqa: BLE001  # raised again where it is waited for
            ended.append((None, err))

    thread = threading.Thread(target=work, daemon=True, name=what)
    within_s = HOOK_CALL_S if entry.group in {GROUPS["hook"], GROUPS["environment"]} else CALL_S
    with no_exit():
        thread.start()
        thread.join(within_s)
    if not ended:
        raise CallHangs(str(plugin_refusal(entry, f"{what} takes longer than {within_s:g} s")))
    answer, error = ended[0]
    if error is not None:
        raise error
    return answer


def _suite_of(target: object) -> tuple[str, str]:
    """Return the suite for what an entry point names, and the kind of plugin; two empty texts where there is none."""
    if isinstance(target, click.Command):
        return "TestCommand", "command"
    if not isinstance(target, type):
        return "", ""
    return next((suite for base, suite in _SUITES.items() if issubclass(target, base)), ("", ""))


def pairs(parts: Iterable[str]) -> dict[str, str]:
    """Return the values by name of texts `KEY=VALUE`; empty ones are left out.

    Raises:
        ConfigError: one has no `=`.
    """
    found = {}
    for part in filter(None, (part.strip() for part in parts)):
        key, sign, text = part.partition("=")
        if not sign:
            raise ConfigError(f"{part!r}; expected KEY=VALUE", hint=f"{part}=VALUE")
        found[key] = text
    return found


@contextmanager
def no_exit() -> Iterator[None]:
    """Have `os._exit` raise where a plugin calls it in this process; in processes that it forks it ends them."""
    own, real = os.getpid(), os._exit

    def refuse(status: int) -> NoReturn:
        if os.getpid() != own:
            real(status)
        raise AssertionError(
            f"it called os._exit({status}), which would end the agent without a result; expected no exit"
        )

    os._exit = posix._exit = refuse
    try:
        yield
    finally:
        os._exit = posix._exit = real


def find(name: str, kind: str | None) -> PluginEntry:
    """Return the entry point of the plugin that is meant; `module:Class` needs none.

    Raises:
        ConfigError: there is none, or there are several.
    """
    if kind is not None and kind not in GROUPS:
        raise ConfigError(f"--kind: {kind!r}; expected one of {', '.join(GROUPS)}", hint=f"--kind {next(iter(GROUPS))}")
    if ":" in name:
        return _not_installed(name, kind)
    entries = [entry for entry in find_entries() if entry.group in _KINDS]
    named = [entry for entry in entries if entry.name == name and (kind is None or entry.group == GROUPS[kind])]
    if len({entry.group for entry in named}) > 1:
        kinds = " and ".join(f"a {_KINDS[entry.group]}" for entry in named)
        hint = " or ".join(f"--kind {_KINDS[entry.group]}" for entry in named)
        raise ConfigError(f"{name!r} is {kinds}, and no kind is named", hint=hint)
    if not named:
        from difflib import get_close_matches

        near = get_close_matches(name, sorted({entry.name for entry in entries}), n=1)
        of_kind = f" of kind {kind!r}" if kind is not None else ""
        hint = f"elastic plugins check {near[0]}" if near else "elastic plugins, which lists what is installed"
        raise ConfigError(f"no plugin{of_kind} {name!r} is installed", hint=hint)
    return named[0]


def _not_installed(value: str, kind: str | None) -> PluginEntry:
    """Return an entry point for a class that has none, from this folder or wherever Python looks."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    group = GROUPS[kind or "failure"]
    made = PluginEntry(group=group, name=value, value=value, distribution=_NOT_INSTALLED, version="")
    if kind is not None:
        return made
    try:
        _, found = _suite_of(imported(made))
    except PluginError as err:  # of what kind it is, nobody knows yet
        raise PluginError(err.what.removeprefix("policy "), hint=err.hint) from err
    return made._replace(group=GROUPS[found or "failure"])

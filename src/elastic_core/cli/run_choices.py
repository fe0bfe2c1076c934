"""Policies and stores that options of `elastic run` choose, for commands of distributions."""

from collections.abc import Mapping
from typing import Final

import click
from msgspec.structs import replace

from elastic_core.errors import ConfigError
from elastic_core.failure.handler import FailureHandler
from elastic_core.options.choices import Choices
from elastic_core.options.readers import key_values, name_of, seconds
from elastic_core.options.restart_options import is_file, policy_choice, policy_settings
from elastic_core.options.table import BY_DEST
from elastic_core.plugins.coordination import store_of_members, store_of_others
from elastic_core.plugins.registry import PluginRegistry
from elastic_core.rendezvous.store import CoordinationStore
from elastic_core.types import Record, RendezvousSettings

READ_LIMIT_S: Final = 5.0
"""Seconds to wait for a server without `--connect-timeout`. It is short, because a user waits."""
_WITHOUT_STORE: Final = ("local", "static")

GivenOptions = Mapping[str, str | tuple[str, ...] | None]


class _StoreOption(click.Option):
    # The second spelling works, but the help omits it.
    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        return None if record is None else (f"{self.opts[0]} {self.metavar}", record[1])


def run_option(name: str, *, help_text: str = "", other_spelling: bool = True, variable: bool = False) -> click.Option:
    """Return an option of `elastic run`, for a command of a distribution.

    Args:
        name: The option's identifier, such as `rdzv_backend`.
        help_text: The help for this command. If empty, the help of `elastic run`.
        other_spelling: Whether `--rdzv_backend` is accepted too.
        variable: Whether the option's variable, `PET_RDZV_BACKEND`, sets the value if the command line does not.
    """
    option = BY_DEST[name]
    spellings = option.spellings if other_spelling else [f"--{option.flag}"]
    shown = f"  [{option.env_name}]" if variable else ""
    return _StoreOption(
        [*spellings, name],
        multiple=option.many,
        metavar=option.value_name or None,
        help=(help_text or option.help) + shown,
        envvar=option.env_name if variable else None,
    )


def chosen_policy(given: GivenOptions, *, file: str | None = None) -> tuple[str, FailureHandler, tuple[str, ...]]:
    """Return the policy that options of `elastic run` choose: its name, the object, and warnings for the user.

    Args:
        given: Option identifier to text; `None` or empty means not given. Variables are not read.
        file: A rule file, instead of `--policy`.

    Raises:
        ConfigError: No policy is given, a value is malformed, or the policy rejects its options.
        PluginError: The policy is not installed, or it is broken.
    """
    chosen = {dest: value for dest, value in given.items() if value}
    if file is not None and "policy" in chosen:
        raise ConfigError(
            f"rule file {file!r} and --policy {chosen['policy']!r} are two policies; expected one", hint="one of them"
        )
    if file is None and "policy" not in chosen:
        raise ConfigError("no policy is named; expected a rule file or a policy", hint="RULES.yaml, or --policy NAME")
    if file is not None:
        chosen["policy"] = file if is_file(file) else f"./{file}"
    choices = Choices(chosen, {}, BY_DEST)
    name, conf = policy_choice(choices)
    registry = PluginRegistry()
    policy = registry.make_policy(name, replace(policy_settings(choices), name=name), conf)
    return name, policy, registry.warnings


class StoreChoice(Record, frozen=True, kw_only=True):
    """A run and its store. `conf` may contain secrets."""

    backend: str
    """The backend's name."""
    endpoint: str
    """The endpoint of the backend."""
    run_id: str
    """The run's id."""
    conf: Mapping[str, str]
    """The backend's options as texts, which may contain secrets."""
    limit_s: float = READ_LIMIT_S
    """Seconds to wait for the server."""


def chosen_store(given: Mapping[str, str], environ: Mapping[str, str]) -> StoreChoice | None:
    """Return the store that the options choose. `None` means that they choose none.

    The environment alone (`PET_RDZV_…`) chooses one if it has both a backend with a store and a run id.

    Raises:
        ConfigError: A part is missing or malformed.
    """
    choices = Choices(given, environ, BY_DEST)
    backend = (choices.text("rdzv_backend") or "").strip()
    in_environment = choices.chosen("rdzv_id") and backend not in _WITHOUT_STORE
    if not given and not in_environment:
        return None
    if not choices.chosen("rdzv_backend"):
        raise ConfigError("no rendezvous backend is named; expected that of the run", hint="--rdzv-backend NAME")
    if not choices.chosen("rdzv_id"):
        raise ConfigError("no run id is given; expected that of the run's nodes", hint="--rdzv-id NAME")
    conf = key_values(choices, "rdzv_conf", [choices.text("rdzv_conf") or ""])
    limit_s = seconds(choices, "connect_timeout") if choices.chosen("connect_timeout") else READ_LIMIT_S
    return StoreChoice(
        backend=backend,
        endpoint=(choices.text("rdzv_endpoint") or "").strip(),
        run_id=name_of(choices, "rdzv_id"),
        conf=conf,
        limit_s=limit_s,
    )


def open_store(choice: StoreChoice, *, max_nodes: int = 1, may_host: bool = False) -> CoordinationStore:
    """Return a run's store, which is not connected yet. The caller closes it.

    Args:
        choice: The run and its store.
        max_nodes: The most nodes that use it.
        may_host: Whether this process may become the server, if a node hosts it (`c10d`). If not, none is started.

    Raises:
        PluginError: The backend is not installed, or it is broken.
        ConfigError: The backend has no store, or rejects the endpoint or options.
    """
    if choice.backend in _WITHOUT_STORE:
        raise _no_store(choice.backend)
    settings = RendezvousSettings(
        backend=choice.backend,
        run_id=choice.run_id,
        endpoint=choice.endpoint,
        min_nodes=1,
        max_nodes=max_nodes,
        local_world_size=1,
    )
    handler = PluginRegistry().make_rendezvous(choice.backend, settings, choice.conf)
    store = store_of_members(handler) if may_host else store_of_others(handler)
    if store is None:
        raise _no_store(choice.backend)
    return store


def _no_store(backend: str) -> ConfigError:
    return ConfigError(
        f"rendezvous backend {backend!r} keeps no store from which a run could be read",
        hint="elastic status RUN_DIR on a node of the run",
    )

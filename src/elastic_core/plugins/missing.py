"""Errors for plugins that are not installed, and hints that install distributions of this project.

The hints install from a checkout: the distributions are on no public index, where other projects may own their names.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from elastic_core.errors import PluginError, nearest
from elastic_core.plugins.discovery import (
    COMMANDS_GROUP,
    FAILURE_GROUP,
    HOOKS_GROUP,
    KINDS,
    OPTIONS_GROUP,
    OUR_DISTRIBUTIONS,
    RENDEZVOUS_GROUP,
    PluginEntry,
    core_name,
    find_entries,
)

_PREFIX: Final = "elastic-"
CORE: Final = f"{_PREFIX}core"


# The file in the folder `sets` that installs a distribution with its requirements. For others, their folder is enough.
_SETS: Final = {
    "elastic-doctor": "ops",
    "elastic-env-slurm": "slurm",
    "elastic-env-kubernetes[cli]": "kubernetes",
    "elastic-ops": "ops",
    "elastic-plugin-kit": "testing",
    "elastic-rdzv-etcd": "etcd",
    "elastic-rdzv-redis": "redis",
    "elastic-rdzv-redis[embedded]": "torchrun",
    "elastic-rdzv-static": "torchrun",
    "elastic-report": "ops",
    "elastic-torchrun": "torchrun",
    "elastic-train": "train",
}


def install_hint(distribution: str, *, core: str = CORE, newer: bool = False) -> str:
    """Return the command that installs a distribution of this project.

    `distribution` may have an extra in brackets. `newer`: an installed one is too old.
    """
    folder = distribution.removeprefix(_PREFIX).replace("-", "_")
    file = _SETS.get(distribution)
    what = "." if distribution == core else f"-r sets/{file}.txt" if file else f". ./plugins/{folder}"
    return f"pip install {what}, in a {'newer ' if newer else ''}checkout of {core}"


def upgrade_hint(distribution: str, *, core: str = CORE) -> str:
    """Return what installs a newer version of an installed distribution.

    For a foreign distribution there is no command: its source is not known, and on the public index its name may be
    another project's.
    """
    if distribution == core or distribution.partition("[")[0] in OUR_DISTRIBUTIONS:
        return install_hint(distribution, core=core, newer=True)
    return f"install a newer {distribution} from where this one came"


# The plugins of this project, by distribution. Foreign ones are not guessed, because other projects may own the names.
_PLUGINS: Final[Mapping[str, Mapping[str, str]]] = {
    RENDEZVOUS_GROUP: {
        CORE: "local",
        "elastic-rdzv-etcd": "etcd, etcd-v2",
        "elastic-rdzv-redis": "redis",
        "elastic-rdzv-redis[embedded]": "c10d",
        "elastic-rdzv-static": "static",
    },
    FAILURE_GROUP: {CORE: "intensity", "elastic-policy-rules": "rules"},
    HOOKS_GROUP: {},
    OPTIONS_GROUP: {
        "elastic-env-slurm": "requeue, requeue-limit",
        "elastic-numa": "numa-binding",
        "elastic-ops": "event-log-handler, metrics-handler, metrics-port, no-control-plane, timings",
        "elastic-standby": "standby, standby-imports, standby-start",
        "elastic-torchrun": "agent-store",
        "elastic-train": "save-signal, save-timeout",
        "elastic-warm": "warm-timeout",
        "elastic-watch": "hang-timeout, on-hang, startup-timeout, uninterruptible-timeout",
    },
    COMMANDS_GROUP: {
        "elastic-ops": "status, incidents, ctl, drain, logs, stop",
        "elastic-doctor": "doctor",
        "elastic-env-kubernetes[cli]": "k8s",
        "elastic-env-slurm": "slurm",
        "elastic-plugin-kit": "plugins check, plugins new, plugins show",
        "elastic-policy-rules": "policy",
        "elastic-report": "report",
    },
}
_KNOWN: Final = {
    group: {name: distribution for distribution, names in lists.items() for name in names.split(", ")}
    for group, lists in _PLUGINS.items()
}

# Variables of torch that need a distribution of this project, and the value that turns each off.
_VARIABLES: Final = {
    "TORCHELASTIC_ENABLE_FILE_TIMER": ("elastic-torchrun", "0"),
    "TORCHELASTIC_HEALTH_CHECK_PORT": ("elastic-torchrun", ""),
}

# Other names of our backends: torchrun has an `etcd` of its own, so ours is `etcd-v3` there.
_ELSEWHERE: Final = {RENDEZVOUS_GROUP: {"etcd-v3": "etcd", "valkey": "redis"}, FAILURE_GROUP: {}, HOOKS_GROUP: {}}


def command_elsewhere(name: str) -> PluginError | None:
    """Return the error for a command of this project that is not installed. `None` for other names."""
    distribution = _KNOWN[COMMANDS_GROUP].get(name)
    if distribution is None:
        return None
    return _comes_with(f"`elastic {name}`", distribution)


def commands_elsewhere() -> tuple[str, ...]:
    """Return the names of this project's commands that are not in the core."""
    return tuple(_KNOWN[COMMANDS_GROUP])


def not_installed(group: str, name: str, installed: Sequence[PluginEntry], in_code: Sequence[str] = ()) -> PluginError:
    """Return the error for a name that is not installed, with the installed names and a hint."""
    core = core_name(installed)
    known = {plugin: install_hint(core if dist == CORE else dist, core=core) for plugin, dist in _KNOWN[group].items()}
    shown = [*(f"{other!r} (in code)" for other in in_code), *(f"{e.name!r} ({e.label})" for e in installed)]
    what = f"{KINDS[group]} {name!r} is not installed; installed: {', '.join(shown) or 'none'}"
    if name in known:
        return PluginError(what, hint=known[name])
    near = _ELSEWHERE[group].get(name) or nearest(name, [*in_code, *(e.name for e in installed), *known])
    if not near:
        return PluginError(what, hint=f"pip install the distribution that provides {name!r}, or check the name")
    present = near in in_code or any(entry.name == near for entry in installed)
    return PluginError(what, hint=repr(near) if present else f"{near!r}, after {known[near]}")


def known_options() -> Collection[str]:
    """Return the options of this project that are not in the core."""
    return _KNOWN[OPTIONS_GROUP]


def options_elsewhere(installed: Collection[str]) -> dict[str, list[str]]:
    """Return the flags of `known_options` that are not installed, by distribution."""
    found: dict[str, list[str]] = {}
    for flag, distribution in sorted(_KNOWN[OPTIONS_GROUP].items()):
        if flag not in installed:
            found.setdefault(distribution, []).append(f"--{flag}")
    return found


def option_not_installed(flag: str, typed: str = "") -> PluginError:
    """Return the error for one of `known_options` whose distribution is not installed.

    `typed` is what the user typed, such as a variable. Empty means the flag itself.
    """
    return _comes_with(typed or f"--{flag}", _KNOWN[OPTIONS_GROUP][flag])


def _comes_with(what: str, distribution: str) -> PluginError:
    hint = install_hint(distribution, core=core_name(find_entries()))
    return PluginError(f"{what} comes with {distribution}", hint=hint)


def refuse_variable(variable: str, text: str) -> None:
    """Accept a variable for which no plugin is installed.

    Raises:
        PluginError: The variable needs a distribution of this project.
    """
    distribution, off = _VARIABLES.get(variable, ("", ""))
    if distribution and text != off:
        raise _comes_with(variable, distribution)

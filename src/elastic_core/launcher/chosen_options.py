"""The options of a run with their values and origins, for users; secrets are masked."""

from collections.abc import Mapping

from elastic_core.launcher.secrets import masked_text, masked_value
from elastic_core.options.settings import Resolution, RunSettings
from elastic_core.options.table import OPTIONS
from elastic_core.reports import ChosenOption
from elastic_core.types import RendezvousSettings

DEFAULT = "default"
"""The origin of a value that neither the user nor the environment has given."""
# Settings that are shown elsewhere, that a running agent sets, and that mark how another one was given.
_UNSHOWN = frozenset(
    """
    entrypoint notices hook_options hooks nodes.min_nodes nodes.max_nodes nodes.incarnation nodes.fingerprint
    nodes.options nodes.lists nodes.attempt_given restarts.run_id restarts.min_nodes restarts.max_nodes restarts.options
    restarts.lists workers.nproc_source
    """.split()  # noqa: SIM905  # a list of names would fill half a page
)
# The option of each setting.
_OPTIONS = {option.field: option.name for option in OPTIONS if option.field}


def chosen_options(resolution: Resolution, *, every: bool = True) -> tuple[ChosenOption, ...]:
    """Return a run's options; without origins, values that are not the defaults come from the `call` of a library.

    With `every`, settings without an option are included, by names of their own.
    """
    settings = resolution.settings
    origins = resolution.origins or _origins_of_call(settings)
    nodes = f"{settings.nodes.min_nodes}:{settings.nodes.max_nodes}"
    of_nodes = origins.get("nodes.min_nodes", origins.get("nodes.max_nodes", DEFAULT))
    rows = [("script", settings.entrypoint.name, _entrypoint_origin(settings, origins)), ("nnodes", nodes, of_nodes)]
    for path, value in resolution.values():
        if path in _UNSHOWN or not (every or path in _OPTIONS):
            continue
        name, origin = _OPTIONS.get(path, path.rpartition(".")[2]), origins.get(path, DEFAULT)
        if path == "workers.worker_hooks":
            value = not value
        elif path == "disabled_plugins":
            value = tuple(f"no:{each}" for each in settings.disabled_plugins)
        rows.append((name, _shown(value), origin))
    rows += [(name, _shown(value), origins[name]) for name, value in settings.hook_options.items()]
    rows += [(f"hook {name}", _shown(conf), origins["hooks"]) for name, conf in settings.hooks.items()]
    return tuple(ChosenOption(name=name, value=value, origin=origin) for name, value, origin in rows)


def _origins_of_call(settings: RunSettings) -> dict[str, str]:
    plain = RunSettings(entrypoint=settings.entrypoint, nodes=RendezvousSettings(run_id=""))
    defaults = dict(Resolution(settings=plain, origins={}).values())
    values = Resolution(settings=settings, origins={}).values()
    given = [path for path, value in values if value != defaults[path]]
    return dict.fromkeys((*given, *settings.hook_options, "entrypoint", "hooks"), "call")


def _entrypoint_origin(settings: RunSettings, origins: Mapping[str, str]) -> str:
    entrypoint = settings.entrypoint
    kind = "program" if not entrypoint.python else "module" if entrypoint.module else "script"
    interpreter = f", run by {entrypoint.argv[0]} ({origins['entrypoint']})" if entrypoint.python else ""
    function = entrypoint.function
    how = "" if function is None else f" as a function (--start-method {function.start_method})"
    return f"{kind}{how}{interpreter}"


def _shown(value: object) -> str:
    if value is None or value in ("", ()):
        return "-"
    if isinstance(value, Mapping):
        return ",".join(f"{key}={masked_value(str(key), str(item))}" for key, item in value.items()) or "-"
    if isinstance(value, tuple):
        return ",".join(map(_shown, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return masked_text(str(value))

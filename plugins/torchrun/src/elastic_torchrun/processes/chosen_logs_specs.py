"""Finds, builds and calls the class in `--logs-specs`: torch's interface, with torch's entry-point group.

A class written for torch works unchanged, whether it derives from torch's `LogsSpecs` or elastic-core's.
"""

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from msgspec.structs import replace

from elastic_core.api import ConfigError, ElasticError, PluginError
from elastic_core.api.plugins import PluginEntry, find_entries
from elastic_core.embedding import (
    IN_CODE,
    RunSettings,
    WorkerLaunch,
    WorkerPaths,
    limited_plan,
    line_prefix,
    parse_ranks,
)
from elastic_torchrun.processes.logs_specs import LogsDest, plan_of
from elastic_torchrun.processes.std import Std

GROUP: Final = "torchrun.logs_specs"
DEFAULT: Final = "default"
"""The name of the default of `--logs-specs`. Torch has a class of that name, which need not be imported."""

_TORCHS_API: Final = "torch.distributed.elastic.multiprocessing.api"
_BY_RANK: Final = ("stdouts", "stderrs", "tee_stdouts", "tee_stderrs", "error_files")


class ChosenLogsSpecs:
    """The logs-specs object of a run.

    Threading: the caller's. The class may block, and then blocks the caller.
    """

    def __init__(self, entry: PluginEntry, specs: Any) -> None:  # noqa: ANN401  # of torch's class, or of anybody's
        """Use an object with the method `reify`."""
        self._entry = entry
        self._specs = specs

    @property
    def specs(self) -> Any:  # noqa: ANN401  # of torch's class, or of anybody's
        """The object itself, for callers that pass it on."""
        return self._specs

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return the destination of a round's output. The class may change `envs`.

        Raises:
            PluginError: the class raised, or omitted a worker.
        """
        answer = _guarded(self._entry, "reify", lambda: self._specs.reify(envs))
        fields: dict[str, Any] = {name: _files(self._entry, answer, name) for name in _BY_RANK}
        for name in ("stdouts", "stderrs"):
            missing = sorted(set(envs) - set(fields[name]))
            if missing:
                _refuse(self._entry, f"reify gave no entry of {name} for local rank {missing[0]}")
        for name in ("filtered_stdout", "filtered_stderr"):
            fields[name] = str(getattr(answer, name, None) or "")
        return LogsDest(**fields)

    def placed(
        self, launches: Sequence[WorkerLaunch], paths: dict[int, WorkerPaths], settings: RunSettings
    ) -> tuple[list[WorkerLaunch], dict[int, WorkerPaths]]:
        """Return the workers of a round, and their files by local rank, with the places that the class chose.

        Raises:
            PluginError: as `reify`.
        """
        envs = {launch.local_rank: dict(launch.env) for launch in launches}
        dest = self.reify(envs)
        moved = {launch.local_rank: _moved(launch, paths[launch.local_rank], dest, settings) for launch in launches}
        relaunches = []
        for launch in launches:
            own = moved[launch.local_rank]
            env = {**envs[launch.local_rank], "TORCHELASTIC_ERROR_FILE": own.error_file}
            relaunches.append(replace(launch, env=env, stdout=own.stdout, stderr=own.stderr))
        return relaunches, moved

    def finish(self) -> None:
        """Let a class of this project remove its empty files. Called: when no worker runs."""
        discard_empty = getattr(self._specs, "discard_empty", None)
        if callable(discard_empty):
            discard_empty()


def _moved(launch: WorkerLaunch, own: WorkerPaths, dest: LogsDest, settings: RunSettings) -> WorkerPaths:
    output, rank = settings.output, launch.local_rank
    error_file = dest.error_files.get(rank, "")
    if error_file not in ("", os.devnull):
        own = replace(own, error_file=error_file)
    if launch.foreground:
        return own
    template, role = output.log_line_prefix_template, settings.nodes.role
    prefix = line_prefix(template, role=role, local_rank=rank, global_rank=launch.global_rank)
    stdout = plan_of(dest.stdouts[rank], dest.tee_stdouts.get(rank), prefix=prefix)
    stderr = plan_of(dest.stderrs[rank], dest.tee_stderrs.get(rank), prefix=prefix)
    return replace(
        own,
        stdout=limited_plan(stdout, settings, output.duplicate_stdout_filters, dest.filtered_stdout or None),
        stderr=limited_plan(stderr, settings, output.duplicate_stderr_filters, dest.filtered_stderr or None),
    )


def choose_logs_specs(settings: RunSettings, injected: object) -> ChosenLogsSpecs | None:
    """Return the injected object, or that of `--logs-specs`. `None` means the default. Raises as the next two."""
    if injected is not None:
        return injected_logs_specs(injected)
    output = settings.output
    return make_logs_specs(
        output.logs_specs or DEFAULT,
        log_dir=output.log_dir,
        redirects=output.redirects,
        tee=output.tee,
        local_ranks=parse_ranks(output.local_ranks_filter, settings.nodes.local_world_size),
    )


def make_logs_specs(
    name: str, *, log_dir: str | None, redirects: str, tee: str, local_ranks: frozenset[int] | None
) -> ChosenLogsSpecs | None:
    """Build the named object. `None` means the default.

    Args:
        name: As typed.
        log_dir: `--log-dir`.
        redirects: As typed.
        tee: As typed.
        local_ranks: Workers with output on the console. `None` means all.

    Raises:
        ConfigError: nothing installed has the name.
        PluginError: two distributions have the name, or loading it fails.
    """
    entry = _entry(name)
    if entry is None:
        return None
    made = _import(entry)
    if not isinstance(made, type) or not callable(getattr(made, "reify", None)):
        _refuse(entry, f"{entry.value} is no class with a method 'reify'")
    std = _std_for(made)
    specs = _guarded(
        entry,
        made.__name__,
        lambda: made(
            log_dir=log_dir,
            redirects=_streams(redirects, std),
            tee=_streams(tee, std),
            local_ranks_filter=None if local_ranks is None else set(local_ranks),
        ),
    )
    return ChosenLogsSpecs(entry, specs)


def injected_logs_specs(specs: object) -> ChosenLogsSpecs:
    """Use an object that the caller of the library has made.

    Raises:
        ConfigError: it has no method `reify`.
    """
    name = type(specs).__name__
    if not callable(getattr(specs, "reify", None)):
        raise ConfigError(f"logs_specs is {name}, which has no method 'reify'", hint="DefaultLogsSpecs(log_dir=…)")
    value = f"{type(specs).__module__}:{type(specs).__qualname__}"
    entry = PluginEntry(group=GROUP, name=name, value=value, distribution=IN_CODE, version="")
    return ChosenLogsSpecs(entry, specs)


def _entry(name: str) -> PluginEntry | None:
    installed = [entry for entry in find_entries(GROUP) if entry.group == GROUP]
    claims = [entry for entry in installed if entry.name == name]
    if name == DEFAULT:
        claims = [entry for entry in claims if entry.distribution != "torch"]
        if not claims:
            return None
    if not claims:
        raise _not_installed(name, installed)
    if len(claims) > 1:
        owners = " and ".join(entry.label for entry in claims)
        raise PluginError(f"--logs-specs {name!r} comes from {owners}", hint=f"pip uninstall {claims[-1].distribution}")
    return claims[0]


def _not_installed(name: str, installed: Sequence[PluginEntry]) -> ConfigError:
    import difflib  # only a user's mistake needs it

    labels = {entry.name: f"{entry.name!r} ({entry.label})" for entry in installed} or {DEFAULT: repr(DEFAULT)}
    near = difflib.get_close_matches(name, sorted(labels), n=1)
    what = f"--logs-specs {name!r} is not installed; entry points of group {GROUP}: {', '.join(labels.values())}"
    hint = f"--logs-specs {near[0]}" if near else f"pip install the distribution that provides {name!r}, or no option"
    return ConfigError(what, hint=hint)


def _import(entry: PluginEntry) -> object:
    module, _, attributes = entry.value.partition(":")

    def load() -> object:
        target: object = importlib.import_module(module.strip())
        for attribute in filter(None, attributes.strip().split(".")):
            target = getattr(target, attribute)
        return target

    return _guarded(entry, f"importing {entry.value}", load)


def _std_for(made: type) -> Any:  # noqa: ANN401  # our `Std` or torch's
    """Return torch's `Std` for torch's classes, which check types; these classes have imported it."""
    torchs = sys.modules.get(_TORCHS_API)
    base = getattr(torchs, "LogsSpecs", None)
    return torchs.Std if torchs is not None and isinstance(base, type) and issubclass(made, base) else Std


def _streams(typed: str, std: Any) -> object:  # noqa: ANN401  # as above
    streams = Std.from_str(typed)
    return {rank: std(int(one)) for rank, one in streams.items()} if isinstance(streams, dict) else std(int(streams))


def _files(entry: PluginEntry, answer: object, name: str) -> dict[int, str]:
    found = getattr(answer, name, {})
    if not isinstance(found, Mapping):
        _refuse(entry, f"reify gave {type(answer).__name__} with {name} of {type(found).__name__}; expected a dict")
    return {int(rank): str(path or "") for rank, path in found.items()}


def _guarded(entry: PluginEntry, doing: str, call: Callable[[], object]) -> object:
    try:
        return call()
    except ElasticError:
        raise
    except (Exception, SystemExit) as error:
        told = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
        hint = f"install a newer {entry.distribution} from where this one came, or report it to its authors"
        raise PluginError(f"logs specs {entry.name!r} ({entry.label}): {doing} raised {told}", hint=hint) from error


def _refuse(entry: PluginEntry, what: str) -> NoReturn:
    hint = f"install a newer {entry.distribution} from where this one came, or report it to its authors"
    raise PluginError(f"logs specs {entry.name!r} ({entry.label}): {what}", hint=hint)

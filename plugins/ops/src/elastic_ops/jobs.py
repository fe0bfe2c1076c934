"""Runs of a scheduler's jobs, which commands find by the job's number.

An entry point of the group `elastic_ops.jobs` names a function of such a number.
"""

import os
import re
from collections.abc import Callable, Mapping
from typing import Final, cast

from elastic_core.api import ConfigError, PluginError
from elastic_core.api.plugins import find_entries, import_entry
from elastic_ops.run_directories import runs_named

JOBS_GROUP: Final = "elastic_ops.jobs"
"""The group of entry points that find the runs of jobs."""
JobRun = Callable[[str], Mapping[str, str] | None]
"""Returns the options of a job's run, by their identifiers (`rdzv_endpoint`). `None` without such a scheduler.

Raises ConfigError: the scheduler has no such job, or the job has no run in a store.
"""

_NUMBER: Final = re.compile(r"\d+[\d_+.]*", re.ASCII)
_PLACE: Final = ("rdzv_backend", "rdzv_endpoint")


def options_of_job(name: str, given: Mapping[str, str]) -> Mapping[str, str]:
    """Return the options of a job's run. Empty if the name is not a job's, or if options or variables name the store.

    Args:
        name: The number of the job or of one of its steps, as its scheduler writes it.
        given: Options that the user typed, by their identifiers.

    Raises:
        ConfigError: the scheduler has no such job, or the job has no run in a store, and no run here has that name.
        PluginError: a distribution is broken.
    """
    if not _NUMBER.fullmatch(name) or any(each in given or os.environ.get(f"PET_{each.upper()}") for each in _PLACE):
        return {}
    for entry in find_entries(JOBS_GROUP):
        if entry.group != JOBS_GROUP:
            continue
        run_of_job = import_entry(entry)
        if not callable(run_of_job):
            raise PluginError(f"{entry.value} ({entry.label}) is no function")
        try:
            options = cast("JobRun", run_of_job)(name)
        except ConfigError:
            if has_runs(name):
                return {}
            raise
        if options is not None:
            return options
    return {}


def has_runs(name: str) -> bool:
    """Return whether this host has directories of a run of that id."""
    try:
        return bool(runs_named(name))
    except ConfigError:
        return False

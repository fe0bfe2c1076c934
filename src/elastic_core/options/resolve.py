"""Computes the settings of a run from the user's choices, with the origin of each value."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from elastic_core.options.choices import Choices, Draft, Given, Proposed
from elastic_core.options.debug_options import take_debugging
from elastic_core.options.entrypoint import check_start_method, make_entrypoint, take_run_path
from elastic_core.options.node_options import place_run, settle_coordination
from elastic_core.options.output_options import resolve_logs
from elastic_core.options.readers import node_range
from elastic_core.options.restart_options import take_restarts, take_stops
from elastic_core.options.settings import Entrypoint, Resolution, finish
from elastic_core.options.table import BY_DEST, chosen_elsewhere, torch_variables
from elastic_core.options.worker_options import place_workers
from elastic_core.plugins.discovery import ENVIRONMENTS_ELSEWHERE, environments_here
from elastic_core.processes.slurm_step import cleaned_step

if TYPE_CHECKING:
    from elastic_core.options.devices import Node


def resolve(
    given: Given,
    script: str = "",
    arguments: Sequence[str] = (),
    *,
    environ: Mapping[str, str],
    node: "Node | None" = None,
    entrypoint: Entrypoint | None = None,
) -> Resolution:
    """Return the settings of a run.

    `given` is the command line by option identifier (see `Choices`); `PET_*` variables in `environ` set other
    options. `node` is where devices are counted; `None` means this node. `entrypoint` is the workers' command of a
    library call; `None` means `script` (a script, module or program) with `arguments`.

    Raises:
        ConfigError: A value is malformed, options contradict each other, or the script cannot be run.
    """
    by_library = entrypoint is not None  # a library call gives all settings and gets no proposals
    proposed, notices = ({}, []) if by_library else _proposals(given, environ)
    choices = Choices(given, environ, BY_DEST, proposed)
    draft = Draft(choices, environ)
    draft.notice(*notices)
    if entrypoint is None and choices.flag("run_path"):
        entrypoint = take_run_path(draft, script, arguments)
    entrypoint = entrypoint or make_entrypoint(
        script,
        arguments,
        module=choices.flag("module"),
        no_python=choices.flag("no_python"),
        environ=environ,
    )
    check_start_method(draft, entrypoint)
    draft.set(
        "entrypoint", entrypoint, "env PYTHON_EXEC" if entrypoint.python and environ.get("PYTHON_EXEC") else "default"
    )
    min_nodes, max_nodes = node_range(choices)
    draft.set("nodes.min_nodes", min_nodes, choices.origin("nnodes"))
    draft.set("nodes.max_nodes", max_nodes, choices.origin("nnodes"))
    settle_coordination(draft)
    place_run(draft, min_nodes, max_nodes)
    take_restarts(draft)
    take_stops(draft)
    nproc = place_workers(draft, node)
    resolve_logs(draft, nproc)
    take_debugging(draft, nproc)
    if any(chain(chosen_elsewhere(given, environ), torch_variables(environ), proposed.keys() - BY_DEST.keys())):
        from elastic_core.options.hook_options import take_hook_options  # reads the installed entry points

        take_hook_options(draft, given)
    return finish(draft)


def _proposals(given: Given, environ: Mapping[str, str]) -> tuple[dict[str, Proposed], list[str]]:
    # Most starts have no environment, and import nothing for it.
    named = "environment" in given or environ.get(BY_DEST["environment"].env_name)
    if not (named or environ.keys() & ENVIRONMENTS_ELSEWHERE.keys() or environments_here(environ)):
        choices = Choices(given, environ, BY_DEST)
        typed = "SLURM_JOB_ID" in environ or choices.chosen("nnodes") or choices.flag("standalone")
        return {}, [] if typed else cleaned_step()
    from elastic_core.options.environments import proposals

    return proposals(given, environ)

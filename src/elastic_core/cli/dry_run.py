"""`elastic run --dry-run`: the resolved configuration, and the command and environment of each worker."""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from elastic_core.encoding import rank_ranges
from elastic_core.errors import PluginError
from elastic_core.hooks.preview import Preview, preview
from elastic_core.launcher.chosen_options import DEFAULT, chosen_options
from elastic_core.launcher.logs import worker_paths
from elastic_core.launcher.plan import Attempt, hook_settings, worker_plan
from elastic_core.launcher.secrets import masked_arguments, masked_value
from elastic_core.moments import WorkersStarting
from elastic_core.options.settings import Resolution, RunSettings
from elastic_core.plugins.discovery import FAILURE_GROUP, RENDEZVOUS_GROUP
from elastic_core.plugins.registry import PluginRegistry
from elastic_core.processes.output.layout import rank_paths
from elastic_core.processes.spec import StreamPlan, WorkerLaunch, WorkerPaths
from elastic_core.types import RendezvousSettings, Round

_RUN_DIR = "<run directory>"
_AT_START = "<chosen at start>"


def describe(resolution: Resolution, environ: Mapping[str, str], *, verbose: bool = False) -> str:
    """Return the text of a dry run; no process is started and no file written. Secrets are masked.

    With `verbose`, it has all settings, otherwise only those that differ from the defaults.
    """
    settings = resolution.settings
    hooks = _asked_hooks(settings)
    attempt = Attempt(
        round=_sample_round(settings.nodes),
        restart_count=0,
        membership_changes=0,
        incarnation=_AT_START,
        node_id=settings.nodes.node_id or os.uname().nodename,
        use_agent_store=hooks.hosting,
        changes=hooks.changes,
    )
    workers = worker_plan(settings, attempt, _sample_paths(settings), inherited=environ)
    blocks = [_configuration(resolution, verbose=verbose)]
    notices = (*settings.notices, *_checked_options(settings), *hooks.lines)
    if notices:
        blocks.append("\n".join(("Notices", *(f"  {line}" for line in notices))))
    blocks += [_worker(worker, settings, environ, hooks.bound_by[worker.local_rank]) for worker in workers]
    return "\n\n".join(blocks)


def _configuration(resolution: Resolution, *, verbose: bool) -> str:
    rows = chosen_options(resolution, every=verbose)
    chosen = rows if verbose else [row for row in rows if row.origin != DEFAULT]
    name_width = max(len(row.name) for row in chosen)
    value_width = min(44, max(len(row.value) for row in chosen))
    lines = [f"  {row.name:<{name_width}}  {row.value:<{value_width}}  {row.origin}".rstrip() for row in chosen]
    others = len(rows) - len(chosen)
    lines += [f"  {others} other options have their defaults: --dry-run -v shows them"] if others else []
    return "\n".join(("Configuration", *lines))


def _checked_options(settings: RunSettings) -> list[str]:
    # A missing plugin is only a line: it may be installed where the run is. Malformed options raise ConfigError.
    lines = []
    for group, name, conf in (
        (RENDEZVOUS_GROUP, settings.nodes.backend, settings.rdzv_conf),
        (FAILURE_GROUP, settings.restarts.name, settings.policy_conf),
    ):
        if conf:
            try:
                PluginRegistry().check_options(group, name, conf)
            except PluginError as err:
                lines.append(str(err))
    return lines


def _asked_hooks(settings: RunSettings) -> Preview:
    # Hooks that no option chooses are not called.
    if not (settings.hook_options or settings.hooks):
        nothing = ("",) * settings.nodes.local_world_size
        return Preview(changes=(), bound_by=nothing, lines=())
    registry = PluginRegistry(disabled=settings.disabled_plugins, hooks=settings.hooks)
    hooks = registry.make_chosen_hooks(hook_settings(settings, _RUN_DIR, dry_run=True), settings.hook_options)
    return preview(hooks, WorkersStarting(round=_sample_round(settings.nodes), restart_count=0, dry_run=True))


def _sample_round(nodes: RendezvousSettings) -> Round:
    # A first round on this node, with the most nodes.
    node_rank, nproc = nodes.node_rank or 0, nodes.local_world_size
    return Round(
        index=0,
        token=0,
        nonce="",
        node_rank=node_rank,
        node_count=nodes.max_nodes,
        local_world_size=nproc,
        base_rank=node_rank * nproc,
        world_size=nodes.max_nodes * nproc,
        role=nodes.role,
        role_base_rank=node_rank * nproc,
        role_world_size=nodes.max_nodes * nproc,
        master_addr=nodes.master_addr or nodes.local_addr or "127.0.0.1",
        master_port=nodes.master_port or 0,
    )


def _sample_paths(settings: RunSettings) -> dict[int, WorkerPaths]:
    output, nproc = settings.output, settings.nodes.local_world_size
    root = Path(output.run_dir or _RUN_DIR)
    if output.log_dir is not None and output.log_dir != os.devnull:
        root = Path(output.log_dir) / f"{settings.nodes.run_id}_<random>"
    paths = {}
    for rank in range(nproc):
        folder = root / "attempt_0" / str(rank)
        files = rank_paths(folder, rank, error_file=str(folder / "error.json"), files=output.log_dir != os.devnull)
        paths[rank] = worker_paths(settings, files, global_rank=(settings.nodes.node_rank or 0) * nproc + rank)
    return paths


def _worker(worker: WorkerLaunch, settings: RunSettings, environ: Mapping[str, str], bound_by: str) -> str:
    of_round = "" if settings.nodes.max_nodes == 1 else f" if all {settings.nodes.max_nodes} nodes come"
    lines = [
        f"Worker {worker.local_rank} (global rank {worker.global_rank}{of_round})",
        f"  command  {shlex.join(masked_arguments(worker.argv))}",
        f"  stdout   {_stream(worker.stdout, settings.output.logs_specs)}",
        f"  stderr   {_stream(worker.stderr, settings.output.logs_specs)}",
    ]
    if worker.cpus is not None:
        processors = rank_ranges(worker.cpus).replace(" ", "")
        lines.append(f"  runs on  processors {processors} (--{bound_by})")
    if worker.foreground:
        lines.append("  terminal this worker's (--debug-rank)")
    own = {name: value for name, value in worker.env.items() if environ.get(name) != value}
    if settings.nodes.master_port is None and "MASTER_PORT" in own:
        own["MASTER_PORT"] = _AT_START
    lines.append(f"  environment (and {len(worker.env) - len(own)} variables as inherited)")
    lines += [f"    {name}={masked_value(name, value)}" for name, value in sorted(own.items())]
    return "\n".join(lines)


def _stream(plan: StreamPlan, logs_specs: str | None) -> str:
    if logs_specs not in (None, "default"):
        return f"where --logs-specs {logs_specs} says"
    places = [plan.file] if plan.file else []
    if plan.file and plan.max_bytes is not None:
        places = [f"{plan.file} (a new one after {plan.max_bytes} bytes, {plan.backups} kept)"]
    if plan.filters and plan.filtered_file:
        places.append(f"{plan.filtered_file}, lines containing {' or '.join(map(repr, plan.filters))}")
    if plan.console:
        places.append(f"console, lines with {plan.prefix!r}")
    elif plan.inherit:
        places.append("console")
    return " and ".join(places) or "nowhere"

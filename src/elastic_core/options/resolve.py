"""Turns what the user chose into the settings of a run: every value checked, each with its origin."""

import sys
from collections.abc import Mapping, Sequence

from elastic_core.errors import ConfigError
from elastic_core.options.choices import Choices
from elastic_core.options.coordination import settle_coordination
from elastic_core.options.devices import Node
from elastic_core.options.draft import Draft, Resolution
from elastic_core.options.entrypoint import make_entrypoint
from elastic_core.options.node_settings import place_run
from elastic_core.options.observing_settings import take_observing
from elastic_core.options.output_settings import resolve_logs
from elastic_core.options.probing import take_probes
from elastic_core.options.restart_settings import take_restarts
from elastic_core.options.run_path import check_start_method, for_each_rank, take_run_path
from elastic_core.options.settings import Entrypoint
from elastic_core.options.values import (
    disabled_plugins,
    integer,
    name_of,
    node_range,
    seconds,
    signal_names,
)
from elastic_core.options.worker_settings import place_workers

_SHUTDOWN_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"


def resolve(
    given: Mapping[str, str | bool | tuple[str, ...]],
    script: str = "",
    arguments: Sequence[str] = (),
    *,
    environ: Mapping[str, str],
    node: Node | None = None,
    entrypoint: Entrypoint | None = None,
) -> Resolution:
    """Return the settings of a run.

    Args:
        given: What the command line gave, by option identifier (see `Choices`).
        script: Script, module or program.
        arguments: Its arguments.
        environ: Environment variables; `PET_*` give the values that the command line does not.
        node: Where devices are counted; None: this node.
        entrypoint: What to run, by a caller who has it at hand; None: `script` with `arguments`.

    Raises:
        ConfigError: a value is malformed, options contradict each other, or the script can't be run.
    """
    choices = Choices(given, environ)
    draft = Draft(choices, environ)
    as_function = entrypoint is None and choices.flag("run_path")
    if as_function:
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
    draft.take("min_nodes", min_nodes, "nnodes")
    draft.take("max_nodes", max_nodes, "nnodes")
    settle_coordination(draft)
    place_run(draft, min_nodes, max_nodes)
    _names(draft)
    take_restarts(draft)
    draft.take("monitor_interval_s", seconds(choices, "monitor_interval", above_zero=True), "monitor_interval")
    _stops(draft)
    nproc = place_workers(draft, node or Node(environ, python=environ.get("PYTHON_EXEC") or sys.executable))
    resolve_logs(draft, nproc)
    take_observing(draft)
    if as_function:
        draft.set("entrypoint", for_each_rank(entrypoint, nproc), "default")
    _debugging(draft, nproc)
    _hangs(draft)
    take_probes(draft)
    _standby(draft, entrypoint)
    return draft.finish()


def _names(draft: Draft) -> None:
    choices = draft.choices
    draft.take("role", name_of(choices, "role"))
    draft.take("local_addr", choices.text("local_addr"))
    draft.take("node_id", name_of(choices, "node_id") if choices.chosen("node_id") else "")
    draft.take("agent_store", choices.flag("agent_store"))


def _stops(draft: Draft) -> None:
    choices = draft.choices
    names, lines = signal_names(choices)
    draft.take("signals_to_handle", names)
    draft.tell(*lines)
    variable = draft.environ.get(_SHUTDOWN_VARIABLE)
    if choices.chosen("shutdown_timeout"):
        draft.take("shutdown_timeout_s", seconds(choices, "shutdown_timeout"), "shutdown_timeout")
    elif variable:
        draft.set("shutdown_timeout_s", _seconds_of(variable), f"env {_SHUTDOWN_VARIABLE}")
    else:
        draft.set("shutdown_timeout_s", 30.0, "default")


def _seconds_of(variable: str) -> float:
    try:
        value = float(variable)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ConfigError(
            f"{_SHUTDOWN_VARIABLE}={variable!r}: needed seconds, 0 or more", hint=f"{_SHUTDOWN_VARIABLE}=30"
        )
    return value


def _debugging(draft: Draft, nproc: int) -> None:
    choices = draft.choices
    rank = choices.text("debug_rank")
    draft.take("debug_rank", None if rank is None else integer(choices, "debug_rank", at_least=0, at_most=nproc - 1))
    draft.take("worker_hooks", not choices.flag("no_worker_hooks"), "no_worker_hooks")
    draft.take("control_plane", not choices.flag("no_control_plane"), "no_control_plane")
    draft.take("disabled_plugins", disabled_plugins(choices), "plugin")


def _hangs(draft: Draft) -> None:
    choices = draft.choices
    held = choices.text("debug_rank") is not None
    for dest in ("hang_timeout", "startup_timeout", "exit_timeout"):
        limit_s = seconds(choices, dest)
        draft.take(f"{dest}_s", 0.0 if held else limit_s, dest)
        if held and limit_s and choices.chosen(dest):
            draft.tell(f"{choices.label(dest)} has no effect: --debug-rank turns time limits off")


def _standby(draft: Draft, entrypoint: Entrypoint) -> None:
    choices = draft.choices
    imports = tuple(name.strip() for name in (choices.text("standby_imports") or "").split(",") if name.strip())
    for name in imports:
        if not all(part.isidentifier() for part in name.split(".")):
            choices.reject("standby_imports", f"module names with commas between them, {name!r} is none")
    draft.take("standby_imports", imports)
    wanted = choices.flag("standby")
    reason = _no_standby(draft, entrypoint) if wanted else ""
    draft.take("standby", wanted and not reason)
    if reason:
        draft.tell(f"{choices.label('standby')} has no effect: {reason}")
    elif choices.chosen("standby_imports") and not wanted:
        draft.tell(f"{choices.label('standby_imports')} has no effect without --standby")


def _no_standby(draft: Draft, entrypoint: Entrypoint) -> str:
    """Return why no worker could ever be taken over by a spare, empty if one could."""
    choices = draft.choices
    if entrypoint.function is not None:
        return "functions as workers (--run-path among them) start afresh"
    if not entrypoint.python:
        return "only Python scripts and modules can have standby workers, not programs (--no-python)"
    if choices.text("debug_rank") is not None:
        return "a worker that has the terminal (--debug-rank) starts afresh"
    alone = node_range(choices)[1] == 1
    if alone and choices.text("policy") == "intensity" and integer(choices, "max_restarts", at_least=0) == 0:
        return "with --max-restarts 0 there is no restart"
    return ""

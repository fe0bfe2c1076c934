"""`--run-path` and `--start-method`: a script that workers run as a function."""

import sys
from collections.abc import Sequence

from msgspec.structs import replace

from elastic_core.errors import ConfigError
from elastic_core.multiprocessing.functions import START_METHODS, FunctionCall
from elastic_core.multiprocessing.functions.script import run_script_path
from elastic_core.options.draft import Draft
from elastic_core.options.entrypoint import LOCAL_RANK_MACRO, make_entrypoint
from elastic_core.options.settings import Entrypoint
from elastic_core.options.values import one_of


def take_run_path(draft: Draft, script: str, arguments: Sequence[str]) -> Entrypoint:
    """Return what has workers run a script by `runpy`, in processes begun as `--start-method` says.

    Raises:
        ConfigError: the script can't be run, or another option stands against it.
    """
    choices = draft.choices
    if choices.flag("module"):
        raise ConfigError(f"{choices.label('run_path')} runs a script, not a module (-m)", hint="only one of them")
    if choices.flag("no_python"):
        draft.tell(f"{choices.label('no_python')} has no effect: {choices.label('run_path')} runs a Python script")
    method = one_of(choices, "start_method", START_METHODS)
    if choices.text("debug_rank") is not None and method != "spawn":
        raise ConfigError(
            f"--debug-rank gives the terminal to a worker, which one started with {method} can't have",
            hint="--start-method spawn",
        )
    checked = make_entrypoint(script, arguments, environ={})
    # Our own function, which needs nothing of the command line's main module.
    call = FunctionCall(fn=run_script_path, args=(script, *arguments), start_method=method, with_main=False)
    return replace(checked, argv=(sys.executable, script, *arguments), function=call)


def for_each_rank(entrypoint: Entrypoint, nproc: int) -> Entrypoint:
    """Replace `${local_rank}` in what each worker's script is given."""
    call = entrypoint.function
    if call is None or not any(LOCAL_RANK_MACRO in arg for arg in call.args_of(0)):
        return entrypoint
    args = {
        rank: tuple(arg.replace(LOCAL_RANK_MACRO, str(rank)) for arg in call.args_of(rank)) for rank in range(nproc)
    }
    return replace(entrypoint, function=replace(call, args=args))


def check_start_method(draft: Draft, entrypoint: Entrypoint) -> None:
    """Check `--start-method`, wherever it was given, and say so where it has no effect.

    Raises:
        ConfigError: there is no such method.
    """
    choices = draft.choices
    if choices.chosen("start_method"):
        one_of(choices, "start_method", START_METHODS)
        if entrypoint.function is None:
            draft.tell(f"{choices.label('start_method')} has no effect without --run-path: each worker is a program")

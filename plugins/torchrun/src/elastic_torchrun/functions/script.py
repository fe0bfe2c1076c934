"""A script as a function: `--run-path`."""

import os
from typing import Any

from elastic_torchrun.functions.call import FunctionCall

_LOCAL_RANK = "${local_rank}"


def run_script_path(training_script: str, *training_script_args: str) -> None:
    """Run a script in this process as if it had been started by itself.

    Args:
        training_script: Its path.
        training_script_args: Its arguments in `sys.argv`, after its own name.
    """
    import runpy  # the command line refers to this function, and does not call it
    import sys

    sys.argv = [training_script, *training_script_args]
    if not sys.flags.safe_path:
        # As Python does for a script, so that it finds the modules beside it.
        sys.path.insert(0, os.path.dirname(os.path.realpath(training_script)))  # noqa: PTH120  # as the interpreter does
    runpy.run_path(training_script, run_name="__main__")


class ScriptCall(FunctionCall, frozen=True, kw_only=False, eq=False):
    """The call of a worker whose function is a script. `${local_rank}` in its arguments is replaced."""

    def args_of(self, local_rank: int) -> tuple[Any, ...]:
        """Return the arguments of this worker's script, after its path."""
        return tuple(arg.replace(_LOCAL_RANK, str(local_rank)) for arg in super().args_of(local_rank))


def script_call(script: str, arguments: tuple[str, ...], start_method: str) -> ScriptCall:
    """Return the call with which workers run a script, for the core's command line."""
    # Our own function, which needs nothing of the command line's main module.
    return ScriptCall(fn=run_script_path, args=(script, *arguments), start_method=start_method, with_main=False)

"""Runs a script within a worker function (`--run-path`)."""

import os
import sys


def run_script_path(training_script: str, *training_script_args: str) -> None:
    """Run a script in this process as if it had been started by itself.

    Args:
        training_script: Its path.
        training_script_args: What it finds in `sys.argv` after its own name.
    """
    import runpy  # the command line refers to this function, and does not call it

    sys.argv = [training_script, *training_script_args]
    if not sys.flags.safe_path:
        # As Python does for a script, so that it finds the modules beside it.
        sys.path.insert(0, os.path.dirname(os.path.realpath(training_script)))  # noqa: PTH120  # as the interpreter does
    runpy.run_path(training_script, run_name="__main__")

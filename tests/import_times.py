"""What `elastic run` imports, by itself: not what it gets ready for failures half a second after its start.

A worker that is late would have that counted, too.
"""

import sys

_RUN = """
import runpy, sys

def put_off(frame, event, arg):
    names = frame.f_globals
    if names.get("__name__") == "elastic_core.launcher.job" and "WARM_AFTER_S" in names:
        names["WARM_AFTER_S"] = 600.0
        sys.setprofile(None)

sys.setprofile(put_off)
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def command(module: str, *words: str) -> list[str]:
    """Return a command that is `python -X importtime -m MODULE WORDS`, with one difference: nothing is got ready."""
    return [sys.executable, "-X", "importtime", "-c", _RUN, module, *words]


def imported(stderr: str) -> set[str]:
    """Return the names of the modules that a command has imported, from what it wrote to stderr."""
    return {line.rpartition("|")[2].strip() for line in stderr.splitlines() if line.startswith("import time:")}

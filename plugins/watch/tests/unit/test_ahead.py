"""What interpreters import that fork workers: all that runs before a script needs, and nothing acts."""

import os
import subprocess
import sys

from elastic_watch.hook import STARTUP
from patience import patience

AHEAD = f"""
import os, sys
sys.modules["torch.distributed"] = sys  # as if it was imported: the recorder is started at once then
threads, variables = os.listdir("/proc/self/task"), dict(os.environ)
import elastic_watch.ahead
assert (os.listdir("/proc/self/task"), dict(os.environ)) == (threads, variables)
before = set(sys.modules)
for name in {STARTUP}:
    module, _, function = name.partition(":")
    __import__(module)
    try:
        getattr(sys.modules[module], function)()
    except FileNotFoundError:  # there is no agent
        pass
print(*sorted(set(sys.modules) - before), "elastic_watch.recorder.worker" in before)
"""


def test_functions_before_the_script_import_nothing_more():
    ran = subprocess.run(
        [sys.executable, "-c", AHEAD],
        env=os.environ | {"TRAINING_BEAT_FILE": "/nowhere", "ELASTIC_ROUND": "0"},
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )
    assert (ran.stdout, ran.returncode) == ("True\n", 0), ran.stderr

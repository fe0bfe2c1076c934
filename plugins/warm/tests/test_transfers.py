"""A transfer after the last commit of a process is complete before its interpreter ends."""

import subprocess
import sys

from patience import patience

SCRIPT = """
import threading
from elastic_warm import transfers

def transfer():
    threading.main_thread().join()  # the script is at its end
    threading.Event().wait(0.3)  # a slow network
    print("complete", flush=True)

transfers.begin(threading.Thread(target=transfer, daemon=True))
print("the end")
"""


def test_the_end_of_the_interpreter_waits_for_it():
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=patience(30), check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == ["the end", "complete"]

"""The script of workers that a test ends: it writes down its variables, and waits."""

import json
import os
import sys
import threading
from pathlib import Path

FOLDER = "PLUGIN_KIT_FOLDER"
"""The variable that says where; no argument, in which the nodes of a run would differ."""
FINISH = "finish"
"""The file by which all workers are told to end; `exit-PID` is for one. Its text is the exit code."""


def main(folder: Path) -> int:
    """Wait for the word of the test, and return the exit code that it says."""
    own = folder / f"worker-{os.getpid()}.json"
    fresh = own.with_suffix(".new")
    fresh.write_text(json.dumps(dict(os.environ)))
    fresh.replace(own)
    pause = threading.Event()
    while True:
        for word in (folder / f"exit-{os.getpid()}", folder / FINISH):
            if word.exists() and (text := word.read_text()):
                return int(text)
        pause.wait(0.02)


if __name__ == "__main__":
    sys.exit(main(Path(os.environ[FOLDER])))

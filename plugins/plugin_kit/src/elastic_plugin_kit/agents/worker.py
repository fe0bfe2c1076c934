"""The script of workers that a test ends: it writes down its variables, and waits."""

import json
import os
import sys
import threading
from pathlib import Path

FOLDER = "PLUGIN_KIT_FOLDER"
"""The variable that says where; no argument, in which the nodes of a run would differ."""
FINISH = "finish"
"""The file that ends all workers; `exit-PID` ends one. Its text is the exit code."""


def main(folder: Path) -> int:
    """Wait until the test writes an exit code, and return it."""
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

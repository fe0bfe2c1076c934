"""Workers with a server."""

HEAD = """
import os, pathlib, sys, threading
from elastic_ops.control_plane import worker_main
here = pathlib.Path(os.environ["TEST_FOLDER"])
def hold():
    (here / "up").touch()
    while not (here / "finish").exists():
        threading.Event().wait(0.02)
"""

"""The workers' scripts: what is measured is the launcher, so they do next to nothing."""

from pathlib import Path

SPEAK = """
import os, time
def speak(word):
    at = time.monotonic_ns()
    line = f"{word} {os.environ['RANK']} {os.environ['TORCHELASTIC_RESTART_COUNT']} {os.getpid()} {at}\\n"
    os.write(1, line.encode())
speak("first")
"""
GONE_AT_ONCE = SPEAK
STAY = SPEAK + "time.sleep(600)\n"
STAY_ONCE = SPEAK + "os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and time.sleep(600)\n"
LEAVE = SPEAK + "time.sleep(0.8)\nspeak('last')\nos._exit(0)\n"
"""Stays long enough for the launcher to have settled, and goes without an interpreter's shutdown of its own."""

_GATED = """
import os, sys
speaks, go, leave, count = sys.argv[1:5]
rank = os.environ["RANK"]
with open(f"{speaks}.{rank}", "w"):
    pass
open(go).close()
%s
open(leave).close()
os._exit(0)
"""
IN_BLOCKS = (
    _GATED
    % """
with open(1, "w", buffering=65536, closefd=False) as out:
    for number in range(int(count)):
        out.write(f"{rank} {number} " + "x" * 48 + "\\n")
"""
)
"""Writes many lines, as fast as a pipe takes them, between two gates, which are FIFOs that it opens."""
PRINTED = (
    _GATED
    % """
for number in range(int(count)):
    print(f"{rank} {number} " + "x" * 48)
"""
)
"""Prints them as scripts do: unbuffered, so that a line and its end are two writes."""

TICK = """
import os, time
for _ in range(40):
    time.sleep(0.05)
    os.write(1, f"tick {time.monotonic_ns()}\\n".encode())
"""


def write(folder: Path, name: str, text: str) -> str:
    """Write a script; return its path."""
    path = folder / f"{name}.py"
    path.write_text(text)
    return str(path)

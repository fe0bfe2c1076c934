"""A terminal for a command, and what it shows there."""

import fcntl
import os
import re
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

from patience import patience

CODE = re.compile(r"\x1b\[[\d;]*m")
"""A code that sets a colour."""
RED, GREEN, YELLOW, BOLD, DIM, OFF = (f"\x1b[{code}m" for code in ("1;31", "32", "33", "1", "2", "0"))


def on_a_terminal(words: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None) -> list[str]:
    """Run a command on a terminal of 100 columns until it ends, and return its lines."""
    leader, follower = os.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("4H", 40, 100, 0, 0))
    process = subprocess.Popen(words, env=env, cwd=cwd, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    text = b""
    try:
        while chunk := os.read(leader, 65536):
            text += chunk
    except OSError:  # EIO: no process has the terminal any more
        os.close(leader)
    process.wait(patience(60))
    return text.decode().replace("\r\n", "\n").splitlines()

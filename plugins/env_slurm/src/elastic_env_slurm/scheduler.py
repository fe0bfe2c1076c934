"""Questions to Slurm, by its own program: each with a time limit, and out of reach of the signals that a step gets."""

import re
import signal
import subprocess
from collections.abc import Mapping
from typing import Final

from elastic_env_slurm.fate import read_fields

LIMIT_S: Final = 10.0
_RECORDS: Final = re.compile(r"^(?=\w+Id=)", re.MULTILINE)
_ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class SlurmError(Exception):
    """Slurm has refused something, or did not answer; the text is its own."""


def show(*what: str) -> Mapping[str, str]:
    """Return what Slurm says of something, by name: `show("job", "4711")`.

    Raises:
        SlurmError: it does not answer.
    """
    return read_fields(_scontrol("show", *what))


def show_all(*what: str) -> list[dict[str, str]]:
    """Return what Slurm says of several things, each by name; at least one: `show_all("step", "4711")`.

    Raises:
        SlurmError: it does not answer, or there is none.
    """
    found = [read_fields(text) for text in _RECORDS.split(_scontrol("show", *what)) if "=" in text]
    if not found:
        raise SlurmError("Slurm shows none")
    return found


def requeue(job: str) -> None:
    """Have Slurm begin a job again.

    Raises:
        SlurmError: it won't.
    """
    _scontrol("requeue", job)


def _scontrol(*words: str) -> str:
    """Return what scontrol writes.

    Slurm signals every process of a step, so ours is started with those signals blocked, which it inherits.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        done = subprocess.run(
            ["scontrol", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"no answer within {LIMIT_S:g} s") from None
    except OSError as err:
        raise SlurmError(f"scontrol: {err.strerror or err}") from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if done.returncode:
        raise SlurmError(" ".join(done.stderr.split()) or f"scontrol ended with {done.returncode}")
    return done.stdout

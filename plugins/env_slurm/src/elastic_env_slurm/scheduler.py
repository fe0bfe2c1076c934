"""Requests to Slurm through its own program, each with a time limit, and protected from signals to the step."""

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
    """Slurm rejected a request, or did not respond; the text is Slurm's own."""


def show(*what: str) -> Mapping[str, str]:
    """Return Slurm's fields of an object, by name: `show("job", "4711")`.

    Raises:
        SlurmError: Slurm does not respond.
    """
    return read_fields(_scontrol("show", *what))


def show_all(*what: str) -> list[dict[str, str]]:
    """Return Slurm's fields of several objects, at least one: `show_all("step", "4711")`.

    Raises:
        SlurmError: Slurm does not respond, or there is no such object.
    """
    found = [read_fields(text) for text in _RECORDS.split(_scontrol("show", *what)) if "=" in text]
    if not found:
        raise SlurmError("Slurm shows none")
    return found


def requeue(job: str) -> None:
    """Have Slurm begin a job again.

    Raises:
        SlurmError: Slurm rejects it.
    """
    _scontrol("requeue", job)


def _scontrol(*words: str) -> str:
    """Return scontrol's output.

    Slurm signals every process of a step, so scontrol is started with those signals blocked.
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

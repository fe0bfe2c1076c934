"""MUNGE credentials, which each host of a Slurm cluster has: every process may carry one, and one user can read it."""

import os
import re
import subprocess
from typing import Final

LIMIT_S: Final = 5.0
"""Seconds for one call of `munge` or `unmunge`."""
_READABLE: Final = (0, 15, 16, 17)
"""Exit codes of `unmunge` with content: valid, expired, from the future, and read here before."""
_UID: Final = re.compile(r"^UID:\s+(\d+)$", re.MULTILINE)


class MungeError(Exception):
    """MUNGE is missing, or has rejected a request; the text has the reason."""


def sealed(text: str) -> str:
    """Return a credential with a text that only this user can read, on hosts with this host's MUNGE key.

    Raises:
        MungeError: it can't be made.
    """
    return _call(["munge", "--restrict-uid", str(os.geteuid())], text, (0,)).strip()


def unsealed(credential: str) -> str:
    """Return the text of a credential that this user has made, of any age; the text itself limits its use.

    Raises:
        MungeError: it is for another user, from another user, or not of this cluster.
    """
    metadata, _, text = _call(["unmunge", "--numeric"], credential, _READABLE).partition("\n\n")
    made_by = _UID.search(metadata)
    if made_by is None or int(made_by[1]) != os.geteuid():
        raise MungeError("another user has made the credential")
    return text


def _call(line: list[str], text: str, good: tuple[int, ...]) -> str:
    try:
        done = subprocess.run(
            line, input=text, capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise MungeError(f"no answer of {line[0]} within {LIMIT_S:g} s") from None
    except OSError as error:
        raise MungeError(f"{line[0]}: {error.strerror or error}") from None
    if done.returncode not in good:
        said = " ".join(done.stderr.split()) or f"ended with {done.returncode}"
        raise MungeError(f"{line[0]}: {said.removeprefix(f'{line[0]}: ').removeprefix('Error: ')}"[:200])
    return done.stdout

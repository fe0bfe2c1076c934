"""All checks of a node, each on a thread of its own.

A check that hangs, as on a dead file system, is a finding, too.
"""

import threading
from collections.abc import Mapping
from typing import Final, cast

from elastic_core.api import SYSTEM_CLOCK, PluginError
from elastic_core.api.plugins import find_entries, import_entry
from elastic_doctor import host, network, software, variables
from elastic_doctor.findings import CHECKS_GROUP, Asked, Check, Finding, Level

OWN: Final[Mapping[str, Check]] = {
    "python": software.python,
    "torch": software.torch,
    "plugins": software.plugins,
    "gpus": software.gpus,
    "processors": host.processors,
    "open files": host.open_files,
    "processes": host.processes,
    "locked memory": host.locked_memory,
    "/dev/shm": host.shared_memory,
    "disks": host.disks,
    "endpoint": network.endpoint,
    "address": network.address,
    "host name": network.host_name,
    "client names": network.client_names,
    "ports": network.ports,
    "interfaces": variables.interfaces,
    "variables": variables.run_variables,
    "left-over variables": variables.left_over,
}
"""The checks of this distribution, in the order in which they are shown."""


def installed_checks() -> tuple[dict[str, Check], list[Finding]]:
    """Return the checks of distributions, by name, and findings about those that can't be loaded."""
    found: dict[str, Check] = {}
    broken = []
    for entry in find_entries(CHECKS_GROUP):
        if entry.group != CHECKS_GROUP:
            continue
        try:
            check = import_entry(entry)
        except PluginError as err:
            broken.append(Finding(check=entry.name, level=Level.WARN, what=err.what, remedy=err.hint))
            continue
        if callable(check):
            found[entry.name] = cast("Check", check)
        else:
            what = f"{entry.value} ({entry.label}) is no function"
            broken.append(Finding(check=entry.name, level=Level.WARN, what=what, remedy="a function of Asked"))
    return found, broken


def examine(asked: Asked, checks: Mapping[str, Check], *, limit_s: float) -> list[Finding]:
    """Return the findings of checks, in their order.

    Args:
        asked: The planned run.
        checks: By name. The name is shown if a check has no finding of its own.
        limit_s: Time limit; all checks run at the same time.
    """
    end_s = SYSTEM_CLOCK.monotonic_s() + limit_s
    running = [_Running(name, check, asked) for name, check in checks.items()]
    return [finding for each in running for finding in each.result(end_s, limit_s)]


class _Running:
    """One running check."""

    def __init__(self, name: str, check: Check, asked: Asked) -> None:
        self._name = name
        self._found: list[Finding] = []
        self._done = threading.Event()
        threading.Thread(target=self._run, args=(check, asked), name=f"doctor {name}", daemon=True).start()

    def _run(self, check: Check, asked: Asked) -> None:
        try:
            self._found = list(check(asked))
        except Exception as err:  # noqa: BLE001  # anybody's code: that it failed is what was found
            what = f"the check itself failed: {type(err).__name__}: {err}"
            self._found = [Finding(check=self._name, level=Level.WARN, what=what, remedy="report it to its author")]
        finally:
            self._done.set()

    def result(self, end_s: float, limit_s: float) -> list[Finding]:
        if self._done.wait(max(0.0, end_s - SYSTEM_CLOCK.monotonic_s())):
            return self._found
        what = f"no answer within {limit_s:g} s"
        remedy = "a longer --time-limit; a network file system or name server that hangs does this, too"
        return [Finding(check=self._name, level=Level.FAIL, what=what, remedy=remedy)]

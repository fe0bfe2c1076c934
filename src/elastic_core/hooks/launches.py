"""Checks the changes that a hook returns for the start of workers, item by item."""

from collections.abc import Iterator, Mapping
from typing import Final, cast

from elastic_core.moments import LaunchChange, Launches, merged_changes

RESERVED: Final = frozenset(
    """
    RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE ROLE_NAME ROLE_RANK ROLE_WORLD_SIZE
    TORCHELASTIC_ERROR_FILE TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RESTART_COUNT TORCHELASTIC_RUN_ID
    TORCHELASTIC_USE_AGENT_STORE
    """.split()  # noqa: SIM905  # as the other lists of names
)
RESERVED_PREFIXES: Final = ("MASTER_", "ELASTIC_")
"""Variables that identify the worker: only the agent sets them."""


class CheckedChanges:
    """The allowed changes of a hook's answer, by local rank, and a line for each rejected item."""

    def __init__(self, answer: Launches, nproc: int) -> None:
        self.faults: list[str] = []
        self.by_rank: dict[int, LaunchChange] = {}
        if environment := self._environment(answer.environment):
            self.by_rank = dict.fromkeys(range(nproc), LaunchChange(environment=environment))
        for rank, change in self._items(answer, nproc):
            own = LaunchChange(
                environment=self._environment(change.environment),
                processors=self._processors(rank, change.processors),
                command=self._command(rank, change),
                startup=self._startup(rank, change.startup),
            )
            self.by_rank[rank] = merged_changes((self.by_rank.get(rank, LaunchChange()), own))

    def _items(self, answer: Launches, nproc: int) -> Iterator[tuple[int, LaunchChange]]:
        workers = cast("Mapping[object, object]", answer.workers)  # filled by plugin code
        for rank, change in workers.items():
            if type(rank) is not int or not 0 <= rank < nproc:
                self.faults.append(f"may not change the worker {rank!r}: local ranks are 0 to {nproc - 1}")
            elif not isinstance(change, LaunchChange) or not isinstance(change.environment, Mapping):
                self.faults.append(
                    f"may not change the worker {rank} by {type(change).__name__}; expected LaunchChange"
                )
            else:
                yield rank, change

    def _environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        allowed: dict[str, str] = {}
        for name, value in variables.items():
            fault = fault_of_variable(name, value)
            if fault:
                self.faults.append(f"may not set {name!r}: {fault}")
            else:
                allowed[name] = value
        return allowed

    def _processors(self, rank: int, processors: frozenset[int] | None) -> frozenset[int] | None:
        if processors is None:
            return None
        numbers = processors if isinstance(processors, (set, frozenset)) else ()
        if not numbers or not all(type(number) is int and number >= 0 for number in numbers):
            self.faults.append(f"may not bind the worker {rank} to {processors!r}; expected a set of processors")
            return None
        return frozenset(numbers)

    def _command(self, rank: int, change: LaunchChange) -> tuple[str, ...]:
        command = change.command
        words = tuple(command) if isinstance(command, (tuple, list)) else (None,)
        needed = "expected a program and its arguments"
        if all(isinstance(word, str) and "\0" not in word for word in words) and words[:1] != ("",):
            if not words or _is_program(str(words[0]), change.environment.get("PATH")):
                return tuple(map(str, words))
            needed = "there is no such program to run"
        self.faults.append(f"may not put {command!r} before the worker {rank}: {needed}")
        return ()

    def _startup(self, rank: int, startup: tuple[str, ...]) -> tuple[str, ...]:
        names = tuple(startup) if isinstance(startup, (tuple, list)) else (None,)
        if all(map(is_function_name, names)):
            return tuple(map(str, names))
        self.faults.append(f"may not have {startup!r} called in the worker {rank}; expected names 'module:function'")
        return ()


def is_function_name(name: object) -> bool:
    """Return whether a text names a function as in `LaunchChange.startup`: `package.module:function`."""
    module, colon, function = name.partition(":") if isinstance(name, str) else ("", "", "")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), function))


def _is_program(name: str, path: object) -> bool:
    from shutil import which  # imported here because few hooks put a command in front

    return which(name, path=path if isinstance(path, str) else None) is not None


def fault_of_variable(name: object, value: object) -> str:
    """Return why a hook may not add this variable to the workers' environment. Empty if it may.

    Variables that identify the worker (`RANK`, `MASTER_PORT`, `ELASTIC_…`) are set by the agent alone.
    """
    if not isinstance(name, str) or not isinstance(value, str):
        return "name and value must be text"
    if not name or "=" in name or "\0" in name or "\0" in value:
        return "an environment can't hold it"
    if name in RESERVED or name.startswith(RESERVED_PREFIXES):
        return "it is reserved, it identifies the worker"
    return ""

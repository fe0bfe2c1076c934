"""Entry points of library calls: a function, a program with arguments, or a script."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from elastic_core.api import ConfigError
from elastic_core.embedding import Entrypoint, make_entrypoint
from elastic_torchrun.functions.call import FunctionCall


def entry_of(
    entrypoint: Callable[..., Any] | str | None,
    args: Sequence[Any],
    *,
    start_method: str = "spawn",
    environ: Mapping[str, str] = os.environ,
) -> Entrypoint:
    """Return a function, or a program with its arguments, from torch's `entrypoint` and `args`.

    Raises:
        ConfigError: it is neither, or the program can't be run.
    """
    if callable(entrypoint):
        call = FunctionCall(fn=entrypoint, args=tuple(args), start_method=start_method)
        return Entrypoint(argv=(sys.executable, call.name), name=call.name, function=call)
    if not isinstance(entrypoint, str) or not entrypoint:
        raise ConfigError(f"entrypoint is {entrypoint!r}; expected a function or a program")
    return _program(entrypoint, [str(arg) for arg in args], environ)


def friendly_entry(
    entrypoint: Callable[..., Any] | str | os.PathLike[str] | Sequence[str],
    args: Sequence[Any],
    *,
    start_method: str,
    environ: Mapping[str, str] = os.environ,
) -> Entrypoint:
    """Return the entry point of `launch`: also the path of a Python script, or a command as a list.

    Raises:
        ConfigError: it is none of these, or can't be run.
    """
    if isinstance(entrypoint, os.PathLike):
        entrypoint = os.fspath(entrypoint)
    if isinstance(entrypoint, (list, tuple)):
        if not entrypoint:
            raise ConfigError("entrypoint is an empty list; expected a program and its arguments")
        program, *own = (str(part) for part in entrypoint)
        return _program(program, [*own, *map(str, args)], environ)
    if isinstance(entrypoint, str) and _is_script(entrypoint):
        return make_entrypoint(entrypoint, [str(arg) for arg in args], environ=environ)
    if isinstance(entrypoint, str) or callable(entrypoint):
        return entry_of(entrypoint, args, start_method=start_method, environ=environ)
    raise ConfigError(f"entrypoint is {entrypoint!r}; expected a function, a script, a program or a list")


def _program(program: str, arguments: Sequence[str], environ: Mapping[str, str]) -> Entrypoint:
    made = make_entrypoint(program, arguments, no_python=True, environ=environ)
    if not _is_python(program):
        return made
    script = next((argument for argument in arguments if not argument.startswith("-")), "")
    return Entrypoint(argv=made.argv, name=script or program, python=True)


def _is_python(program: str) -> bool:
    return program == sys.executable or Path(program).name.rstrip("0123456789.") == "python"


def _is_script(text: str) -> bool:
    return text.endswith(".py") or (Path(text).is_dir() and (Path(text) / "__main__.py").is_file())

"""Builds the workers' command, and rejects a command that cannot run before the run starts."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from elastic_core.errors import ConfigError, ProgramMissingError, nearest
from elastic_core.options.choices import Draft
from elastic_core.options.settings import Entrypoint
from elastic_core.starters import WorkerCall

LOCAL_RANK_MACRO = "${local_rank}"


def make_entrypoint(
    script: str,
    arguments: Sequence[str],
    *,
    module: bool = False,
    no_python: bool = False,
    environ: Mapping[str, str],
) -> Entrypoint:
    """Return the workers' command: `PYTHON_EXEC` or this interpreter, unbuffered; or the program itself.

    `script` is a script, module or program, as typed; its arguments are not changed. Of `environ`, `PYTHON_EXEC`
    and `PATH` are read.

    Raises:
        ConfigError: The script, module or program is missing or cannot be run.
    """
    if module and no_python:
        raise ConfigError("--module and --no-python are both given; expected one of both", hint="only one of them")
    if no_python:
        _check_program(_for_rank_0(script), environ)
        return Entrypoint(argv=(script, *arguments), name=script, python=False)
    python = environ.get("PYTHON_EXEC") or sys.executable
    if python != sys.executable:
        _check_python(python, environ)
    if module:
        if python == sys.executable and LOCAL_RANK_MACRO not in script:
            _check_module(script)
        return Entrypoint(argv=(python, "-u", "-m", script, *arguments), name=script, module=script)
    _check_script(_for_rank_0(script), arguments)
    return Entrypoint(argv=(python, "-u", script, *arguments), name=script, script=script)


def _for_rank_0(text: str) -> str:
    return text.replace(LOCAL_RANK_MACRO, "0")


# --- scripts ---


def _check_script(script: str, arguments: Sequence[str]) -> None:
    path = Path(script)
    _check_here(script, absolute=path.is_absolute())
    try:
        missing = not path.exists()
    except OSError as error:  # the name is too long, links form a loop, or a directory forbids access
        raise ConfigError(f"script {script!r}: {error.strerror}", hint="a file that can be read") from error
    if not script:
        raise ConfigError("SCRIPT: ''; expected the path of a script", hint="elastic run train.py")
    if script == "-":
        raise ConfigError(f"script {script!r}: the workers can't share standard input as their script", hint="a file")
    if missing:
        interpreter = re.fullmatch(r"(?:\S*/)?python[\d.]*", script)
        hint = f"{arguments[0]}, without {script!r}" if interpreter and arguments else _script_hint(path)
        raise ConfigError(_not_found("script", path), hint=hint)
    if path.is_dir() and not (path / "__main__.py").is_file():
        raise ConfigError(f"script {script!r} is a directory without __main__.py", hint=_directory_hint(path))
    if not os.access(path, os.R_OK):
        raise ConfigError(f"script {script!r} can't be read by this user", hint=f"chmod u+r {script}")
    _check_python_script(script, path, arguments)


def _check_python_script(script: str, path: Path, arguments: Sequence[str]) -> None:
    # Only a file that certainly is not Python is rejected.
    program = script if os.sep in script else f"./{script}"
    if path.is_file():
        with path.open("rb") as file:
            if file.read(4) == b"\x7fELF":
                raise ConfigError(f"script {script!r} is a program, not Python", hint=f"--no-python {program}")
    if path.suffix in (".sh", ".bash", ".zsh"):
        raise ConfigError(f"script {script!r} is a shell script, not Python", hint=f"--no-python {program}")
    if path.suffix == ".ipynb":
        raise ConfigError(
            f"script {script!r} is a notebook, not Python", hint=f"jupyter nbconvert --to script {script}"
        )
    if path.suffix in (".yaml", ".yml", ".toml"):
        hint = f"{arguments[0]} {script}" if arguments else f"SCRIPT {script}"
        raise ConfigError(f"script {script!r} is a file of settings, not Python", hint=hint)


def _check_here(name: str, *, absolute: bool) -> None:
    # A relative name is useless if the working directory was removed.
    if not absolute and _here() is None:
        what = f"{name!r} counts from the current directory, which is gone or can't be entered"
        raise ConfigError(what, hint="cd to a directory that exists, or an absolute path")


def _here() -> Path | None:
    try:
        return Path.cwd()
    except OSError:  # removed, or no access
        return None


def _directory_hint(folder: Path) -> str:
    scripts = [name for name in _file_names(folder) if name.endswith(".py")]
    usual = [name for name in ("train.py", "main.py") if name in scripts]
    likely = usual or (scripts if len(scripts) == 1 else [])
    return str(folder / likely[0]) if likely else "the path of a script in it"


def _not_found(what: str, path: Path) -> str:
    if path.is_symlink():
        return f"{what} {str(path)!r} is a link to {str(path.readlink())!r}, which does not exist"
    where = "" if path.is_absolute() else f" in {str(Path.cwd())!r}"
    if not path.parent.is_dir():
        return f"{what} {str(path)!r} not found{where}: there is no directory {str(path.parent)!r}"
    return f"{what} {str(path)!r} not found{where}"


def _script_hint(path: Path) -> str:
    near = nearest(path.name, _file_names(path.parent))
    if near:
        return str(path.parent / near)
    if path.suffix != ".py" and os.sep not in str(path):
        return f"-m {path} if it is a module, --no-python {path} if it is a program"
    return "a path from this directory, or an absolute one"


def _file_names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(folder)]
    except OSError:
        return []  # no hint then; the caller reports the error


# --- programs ---


def _check_program(program: str, environ: Mapping[str, str]) -> None:
    if os.sep not in program:
        if _on_path(program, environ):
            return
        here = Path(program)
        hint = f"./{program}" if here.is_file() else "its path, or a program on PATH"
        raise ProgramMissingError(f"program {program!r} not found on PATH", hint=hint)
    path = Path(program)
    _check_here(program, absolute=path.is_absolute())
    try:
        missing = not path.exists()
    except OSError as error:
        raise ConfigError(f"program {program!r}: {error.strerror}", hint="the path of an executable file") from error
    if missing:
        near = nearest(path.name, _file_names(path.parent))
        folder = program.rpartition(os.sep)[0]  # with `./`, so that PATH is not searched
        hint = f"{folder}{os.sep}{near}" if near else "its path, or a program on PATH"
        raise ProgramMissingError(_not_found("program", path), hint=hint)
    if path.is_dir():
        raise ConfigError(f"program {program!r} is a directory", hint="the path of an executable file")
    if not os.access(path, os.X_OK):
        raise ConfigError(f"program {program!r} is not executable", hint=f"chmod u+x {program}, or no --no-python")


def _on_path(program: str, environ: Mapping[str, str]) -> bool:
    folders = (environ.get("PATH") or os.defpath).split(os.pathsep)
    candidates = (Path(folder) / program for folder in folders if program)
    return any(_is_program(path) for path in candidates)


def _is_program(path: Path) -> bool:
    # In this order, because `is_file` raises without access.
    return os.access(path, os.X_OK) and path.is_file()


def _check_python(python: str, environ: Mapping[str, str]) -> None:
    found = _is_program(Path(python)) if os.sep in python else _on_path(python, environ)
    if not found:
        raise ConfigError(
            f"PYTHON_EXEC: {python!r}; expected an executable file", hint=f"unset it, or PYTHON_EXEC={sys.executable}"
        )


# --- modules ---


def _check_module(name: str) -> None:
    # Only the top-level package is searched, and nothing is imported: if a submodule is missing, the worker ends with
    # an error record.
    if name.endswith(".py") or os.sep in name:
        as_module = name.removesuffix(".py").strip("./").replace(os.sep, ".")
        raise ConfigError(f"module {name!r} looks like a file", hint=f"no -m, or -m {as_module}")
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"module {name!r}; expected a module name", hint="PACKAGE.MODULE, or no -m for a file")
    from importlib.machinery import PathFinder
    from importlib.util import find_spec

    top, here = name.partition(".")[0], _here()
    try:
        # 'python -m' searches the working directory first; our own path may begin with the script's directory.
        found = (here is not None and PathFinder.find_spec(top, [str(here)])) or find_spec(top)
    except (ImportError, SyntaxError, ValueError):
        return  # a foreign finder fails here: the interpreter reports it better
    if found is None:
        names = [entry.removesuffix(".py") for entry in _file_names(here or Path(os.devnull))]
        near = nearest(top, [entry for entry in names if entry.isidentifier() and entry != top])
        where = repr(str(here)) if here is not None else "a directory that is gone"
        raise ConfigError(
            f"module {name!r} not found by {sys.executable!r} in {where}",
            hint=f"-m {near}" if near else "its name as in 'python -m', from this directory",
        )


# --- scripts as functions ---


def take_run_path(draft: Draft, script: str, arguments: Sequence[str]) -> Entrypoint:
    """Return an entrypoint by which workers run a script by `runpy`, in processes of `--start-method`.

    Raises:
        ConfigError: The script cannot be run, or another option contradicts it.
    """
    choices = draft.choices
    if choices.flag("module"):
        raise ConfigError(f"{choices.label('run_path')} runs a script, not a module (-m)", hint="only one of them")
    if choices.flag("no_python"):
        draft.notice(f"{choices.label('no_python')} has no effect: {choices.label('run_path')} runs a Python script")
    method = str(choices.value("start_method"))
    if choices.text("debug_rank") is not None and method != "spawn":
        raise ConfigError(
            f"--debug-rank gives the terminal to a worker, which one started with {method} can't have",
            hint="--start-method spawn",
        )
    from elastic_core.plugins.torch_side import torch_part  # function calls need elastic-torchrun

    checked = make_entrypoint(script, arguments, environ={})
    script_call = torch_part("script_call", needed_by=choices.label("run_path"))
    call: WorkerCall = script_call(script, tuple(arguments), method)
    return replace(checked, argv=(sys.executable, script, *arguments), function=call)


def check_start_method(draft: Draft, entrypoint: Entrypoint) -> None:
    """Check `--start-method`, and add a notice if it has no effect.

    Raises:
        ConfigError: The method does not exist.
    """
    choices = draft.choices
    if choices.chosen("start_method"):
        choices.value("start_method")
        if entrypoint.function is None:
            draft.notice(f"{choices.label('start_method')} has no effect without --run-path: each worker is a program")

"""Write a package with a plugin that works, to begin with."""

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

import click

from elastic_core.api import ConfigError

api_version = 1

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?", re.IGNORECASE)
"""What the package indexes take for a project's name."""
_TEMPLATES: Final = Path(__file__).parent / "templates"
"""Files for every kind (`common`) and for each: `package` in a path, and `$words` in a text, are replaced."""


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """What is written for one interface. Commands: `{name}` is the plugin's; `trial` needs no script of the user's."""

    word: str
    group: str
    noun: str
    summary: str
    suffix: str
    module: str
    points: str
    """Its entry points, as a part of pyproject.toml."""
    example: str
    trial: str
    point: str = "{name}"
    """What its first entry point is called."""


_CLASS: Final = '[project.entry-points."{group}"]\n{name} = "{package}:{cls}"'
_STORE: Final = (  # not from the package itself, which each torchrun imports for the handler
    '[project.entry-points."{group}"]\n{name} = "{package}.store:{cls}"'
    '\n\n[project.entry-points."torchrun.handlers"] # of stock torchrun: the same backend under it'
    '\n{name} = "{package}.torchrun:handler"'
)
_FLAG: Final = '\n\n[project.entry-points."elastic_core.options"]\n{name}-file = "{package}.options:FILE"'

_KINDS: Final = (
    _Kind(
        word="rendezvous",
        group="elastic_core.rendezvous",
        noun="rendezvous backend",
        summary="A rendezvous backend for elastic-core",
        suffix="Store",
        module="store",
        points=_STORE,
        example="elastic run --rdzv-backend {name} --rdzv-id my-run --nnodes 2 train.py    # twice, on one host",
        trial="elastic run --rdzv-backend {name} --rdzv-id try --nproc-per-node 2 -m platform",
    ),
    _Kind(
        word="failure",
        group="elastic_core.failure",
        noun="policy",
        summary="A restart policy for elastic-core",
        suffix="Policy",
        module="policy",
        points=_CLASS,
        example="elastic run --max-restarts 3 --policy {name} --policy-conf pause=5 train.py",
        trial="elastic run --max-restarts 3 --policy {name} -m platform",
    ),
    _Kind(
        word="hook",
        group="elastic_core.hooks",
        noun="hook",
        summary="A hook for elastic-core",
        suffix="Hook",
        module="hook",
        points=_CLASS + _FLAG,
        example="elastic run train.py    # an installed hook is on, in every run; -p no:{name} leaves it out",
        trial="elastic run --{name}-file diary.txt -m platform && cat diary.txt",
    ),
    _Kind(
        word="command",
        group="elastic_core.commands",
        noun="command",
        summary="A command of elastic",
        suffix="Command",
        module="command",
        points='[project.entry-points."{group}"]\n{name} = "{package}.command:command"',
        example="elastic {name}",
        trial="elastic {name}",
    ),
    _Kind(
        word="environment",
        group="elastic_core.environments",
        noun="environment",
        summary="An environment for elastic-core",
        suffix="Environment",
        module="environment",
        points='[project.entry-points."{group}"]\n{point} = "{package}:{cls}"',
        example="elastic run train.py    # where {point} is set; --environment none leaves it out",
        trial="{point}=7 {constant}_HOSTS=n1,n2 {constant}_NODE=0 elastic run --dry-run -m platform",
        point="{constant}_JOB",
    ),
)
_WORDS: Final = tuple(kind.word for kind in _KINDS)
_MEANT: Final = {
    "backend": "rendezvous",
    "handler": "failure",
    "observer": "hook",
    "policy": "failure",
    "rdzv": "rendezvous",
    "scheduler": "environment",
    "store": "rendezvous",
}
"""What else people call the kinds: not taken, but understood in the hint of the error."""


def _new(distribution: str, kind: str | None, plugin: str | None, directory: str | None) -> int:
    chosen = _chosen(kind)
    names = _names(distribution, plugin, chosen)
    _refuse_taken(names, chosen)
    folder, (core, version) = Path(directory or names.distribution), _core()
    _refuse_occupied(folder)
    known = _known(names, chosen)
    words = known | {
        "distribution": names.distribution,
        "option": names.plugin.replace("-", "_"),
        "title": names.plugin.replace("-", " ").capitalize(),
        "points": chosen.points.format(group=chosen.group, **known),
        "module": chosen.module,
        "summary": chosen.summary,
        "example": chosen.example.format(**known),
        "core": core,
        "requires": f"{core}{_bounds(version)}",
    }
    written = [_write(folder / path, text) for path, text in _files(chosen, words)]
    _print_next(folder, written, names, chosen)
    return 0


def _known(names: "_Names", kind: _Kind) -> dict[str, str]:
    """Return the words that entry points and commands are made of."""
    constant = names.plugin.replace("-", "_").upper()
    return {
        "name": names.plugin,
        "constant": constant,
        "package": names.package,
        "cls": _class_name(names.plugin, kind),
        "point": kind.point.format(name=names.plugin, constant=constant),
    }


# --- what the user wants


def _chosen(word: str | None) -> _Kind:
    known = ", ".join(_WORDS)
    if not word:
        raise ConfigError("--kind: not given; expected a kind of plugin", hint=f"--kind {' or '.join(_WORDS)}")
    for kind in _KINDS:
        if kind.word == word:
            return kind
    from difflib import get_close_matches

    near = next(iter(get_close_matches(word.lower(), (*_WORDS, *_MEANT), n=1)), "")
    raise ConfigError(
        f"--kind: {word!r}; expected one of {known}", hint=f"--kind {_MEANT.get(near, near) or _WORDS[0]}"
    )


@dataclass(frozen=True)
class _Names:
    """What the new package is called: its distribution, the package to import, and the plugin in it."""

    distribution: str
    package: str
    plugin: str

    @property
    def apart(self) -> str | None:
        """The plugin's name, where it is not the distribution's."""
        return self.plugin if self.plugin != self.distribution else None


def _names(distribution: str, plugin: str | None, kind: _Kind) -> _Names:
    """Return the names, or say why there can be none."""
    needed = "expected letters, digits and '-', '_', '.' between them"
    if not _NAME.fullmatch(distribution):
        hint = _line(_slug(distribution), plugin, kind)
        raise ConfigError(f"{distribution!r} can't be a distribution's name; {needed}", hint=hint)
    dist = _normal(distribution)
    if plugin is not None and not (_NAME.fullmatch(plugin) and plugin[0].isalpha()):
        hint = _line(dist, _slug(plugin), kind)
        raise ConfigError(f"--name {plugin!r} can't be a plugin's name; {needed}, and a letter first", hint=hint)
    import keyword

    package = dist.replace("-", "_")
    if not package.isidentifier() or keyword.iskeyword(package):
        raise ConfigError(f"{package!r} can't be imported by Python", hint=_line(f"my-{dist}", plugin, kind))
    return _Names(dist, package, _normal(plugin or dist))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _slug(name: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "my-plugin"
    return slug if slug[0].isalpha() else f"my-{slug}"


def _line(distribution: str, plugin: str | None, kind: _Kind) -> str:
    return f"elastic plugins new {distribution} --kind {kind.word}" + (f" --name {plugin}" if plugin else "")


def _refuse_taken(names: _Names, kind: _Kind) -> None:
    """Refuse what an installed plugin or package has: one of both would hide the other."""
    from importlib.util import find_spec

    plugin, other = names.plugin, f"my-{names.distribution}"
    hint = _line(names.distribution if names.apart else other, names.apart and f"my-{plugin}", kind)
    if kind.word == "command" and plugin in _commands():
        raise ConfigError(f"there is a command {plugin!r} already", hint=hint)
    point = kind.point.format(name=plugin, constant=plugin.replace("-", "_").upper())
    for entry in entry_points(group=kind.group, name=point):
        owner = f", of {entry.dist.name} {entry.dist.version}" if entry.dist is not None else ""
        raise ConfigError(f"there is a {kind.noun} {point!r} already{owner}", hint=hint)
    spec = find_spec(names.package)
    if spec is not None and spec.origin is not None:  # None: a folder without Python files, which hides nothing
        hint = _line(other, names.apart, kind)
        raise ConfigError(f"there is a package {names.package!r} already ({spec.origin})", hint=hint)


def _commands() -> list[str]:
    """Return the commands of `elastic`, the core's own among them."""
    context = click.get_current_context().find_root()
    return context.command.list_commands(context) if isinstance(context.command, click.Group) else []


def _refuse_occupied(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        what = "exists and is not empty" if folder.is_dir() else "exists and is no directory"
        raise ConfigError(f"{str(folder)!r} {what}; nothing is overwritten", hint="--directory DIR, a new one")


def _class_name(plugin: str, kind: _Kind) -> str:
    """Return `MyBackendStore` for `my-backend`; never a name that the package has for something else."""
    name = "".join(word[:1].upper() + word[1:] for word in plugin.split("-"))
    full = name if name.endswith(kind.suffix) else name + kind.suffix
    taken = any(re.search(rf"\b{full}\b", text) for _, text in _templates(kind))
    return f"My{full}" if taken else full


def _core() -> tuple[str, str]:
    """Return name and version of the core as it is installed: of what brings the backend `local`."""
    for entry in entry_points(group="elastic_core.rendezvous", name="local"):
        if entry.value.startswith("elastic_core.") and entry.dist is not None:
            return entry.dist.name, entry.dist.version
    raise ConfigError(
        "elastic_core: its version is unknown, as no installed distribution provides it",
        hint="pip install ., in a checkout of elastic-core",
    )


def _bounds(version: str) -> str:
    """Return the range of the core that a plugin of today may require: up to the next version that may break it."""
    major, minor = map(int, version.split(".")[:2])
    release = re.fullmatch(r"[\d.]+", version) is not None
    above = f"0.{minor + 1}" if major == 0 else str(major + 1)
    return f">={f'{major}.{minor}' if release else version},<{above}"


# --- what is written


def _templates(kind: _Kind) -> Iterator[tuple[str, str]]:
    """Give the path of each template, relative to the package's folder, and its text."""
    for folder in (_TEMPLATES / "common", _TEMPLATES / kind.word):
        for path in sorted(folder.rglob("*.tmpl")):
            yield str(path.relative_to(folder)).removesuffix(".tmpl"), path.read_text(encoding="utf-8")


def _files(kind: _Kind, words: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Give the path of each file within the package's folder, and its text."""
    from string import Template

    for path, text in _templates(kind):
        yield path.replace("package", words["package"]), Template(text).substitute(words)


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:  # never one that somebody has put there meanwhile
        file.write(text)
    return path


def _print_next(folder: Path, written: list[Path], names: _Names, kind: _Kind) -> None:
    import shlex

    lines = [
        f"wrote a package with the {kind.noun} {names.plugin!r}:",
        *(f"  {path}" for path in sorted(written)),
        "next:",
    ]
    trial = kind.trial.format(**_known(names, kind))
    commands = [f"cd {shlex.quote(str(folder))}", "pip install -e '.[test]'", "pytest", trial]
    lines += [f"  {line}" for line in commands[folder == Path() :]]
    lines.append(f"then fill in what is marked TODO; begin with src/{names.package}/{kind.module}.py")
    sys.stdout.writelines(f"{_printable(line)}\n" for line in lines)


def _printable(line: str) -> str:
    """Return a line that steers no terminal, whatever a folder is called; bytes that were no Unicode stay."""
    return "".join(sign if sign.isprintable() or "\ud800" <= sign <= "\udfff" else "?" for sign in line)


_HELP = """\
Write a package with a plugin that works: code, entry point, and tests that subclass the conformance kit and pass.

NAME is the name of the distribution, and of the plugin unless --name gives another one. Parts to fill in
are marked TODO.
"""
_EPILOG = """\b
Examples:
  elastic plugins new my-policy --kind failure
  elastic plugins new elastic-rdzv-sqlite --kind rendezvous --name sqlite
  elastic plugins new my-store --kind rendezvous --directory ~/src/my-store
"""

command = click.Command(
    "new",
    callback=_new,
    params=[
        click.Argument(["distribution"], metavar="NAME"),
        click.Option(
            ["--kind"],
            metavar="KIND",
            shell_complete=lambda ctx, param, incomplete: [word for word in _WORDS if word.startswith(incomplete)],
            help="rendezvous (a store, through which nodes meet), failure (a policy: decides after failures), hook "
            "(an observer of the agent, perhaps with flags of elastic run), command (of elastic), or environment "
            "(proposes options from the variables of a scheduler).",
        ),
        click.Option(
            ["--name", "plugin"],
            metavar="PLUGIN",
            help="The name by which users choose the plugin, if it differs from NAME.",
        ),
        click.Option(
            ["--directory"],
            metavar="DIR",
            type=click.Path(file_okay=False),
            help="Folder to write, new or empty.  [default: NAME]",
        ),
    ],
    help=_HELP,
    epilog=_EPILOG,
)

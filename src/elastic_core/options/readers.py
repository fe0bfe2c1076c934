"""Reads the text of one option's value, the same for the command line and the environment. No I/O."""

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from elastic_core.errors import ConfigError
from elastic_core.options.choices import Choices
from elastic_core.plugins.conversion import duration_s

_V = TypeVar("_V")
_INT = re.compile(r"[+-]?\d+")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIGNAL_UNHANDLED = frozenset(("SIGKILL", "SIGSTOP"))


def if_chosen(read: Callable[[Choices, str], _V]) -> Callable[[Choices, str], _V | None]:
    """Return a reader for an option that has no default: None, unless somebody gave it."""
    return lambda choices, dest: read(choices, dest) if choices.chosen(dest) else None


def integer(choices: Choices, dest: str, *, at_least: int = 0, at_most: int | None = None) -> int:
    """Return the value as a whole number within its bounds.

    Raises:
        ConfigError: it is not one.
    """
    bounds = f"a whole number from {at_least}" + (" up" if at_most is None else f" to {at_most}")
    text = (choices.text(dest) or "").strip()
    if not _INT.fullmatch(text):
        choices.reject(dest, bounds)
    value = int(text)
    if value < at_least or (at_most is not None and value > at_most):
        choices.reject(dest, bounds)
    return value


def seconds(choices: Choices, dest: str, *, above_zero: bool = False) -> float:
    """Return the value, a number or one with a unit (`500ms`, `2m`), as seconds: zero or more, or above zero.

    Raises:
        ConfigError: it is no such time.
    """
    value = duration_s(choices.text(dest) or "")
    if value is None or (above_zero and value == 0):
        least = "more than 0" if above_zero else "0 or more"
        choices.reject(dest, f"seconds, {least}, or a time as 30s, 5m or 1h")
    return value


def size_bytes(choices: Choices, dest: str, *, at_least: int) -> int:
    """Return the value, a number with K, M, G or nothing behind it, as bytes (K is 1024).

    Raises:
        ConfigError: it is not one, or too small.
    """
    match = _SIZE.fullmatch((choices.text(dest) or "").strip())
    size = int(float(match[1]) * _UNITS[match[2].upper()]) if match else -1
    if size < at_least:
        needed = f"a size of at least {at_least} bytes, a number with K, M, G or nothing behind it"
        choices.reject(dest, needed, hint=f"--{choices.rows[dest].name} 100M")
    return size


def comma_list(text: str) -> tuple[str, ...]:
    """Return what a list with commas names: two commas in a row are one comma of a name; empty names don't count."""
    names = (name.replace("\0", ",") for name in text.replace(",,", "\0").split(","))
    return tuple(name for name in names if name)


def one_of(choices: Choices, dest: str, allowed: tuple[str, ...] = ()) -> str:
    """Return the value if it is one of those allowed; without any, of those that the option lists.

    Raises:
        ConfigError: it is another one.
    """
    text = choices.text(dest) or ""
    allowed = allowed or choices.rows[dest].choices
    if text not in allowed:
        choices.reject(dest, f"one of {', '.join(allowed)}", hint=nearest(text, allowed))
    return text


_NAMES = {"node-id": "node0", "role": "trainer"}


def name_of(choices: Choices, dest: str) -> str:
    """Return the value as a name that others will read, in lines, documents and keys: printable, and not empty.

    Raises:
        ConfigError: it is empty, or has a character in it that can't be seen (or is not UTF-8).
    """
    text = choices.text(dest) or ""
    if not text or not text.isprintable():
        option = choices.rows[dest].name
        choices.reject(dest, "a name of printable characters", hint=f"--{option} {_NAMES.get(option, 'bert-7')}")
    return text


def node_range(choices: Choices) -> tuple[int, int]:
    """Return `--nnodes` as (fewest, most) nodes.

    Raises:
        ConfigError: it is neither `N` nor `MIN:MAX`, or not 0 < MIN <= MAX.
    """
    parts = (choices.text("nnodes") or "").strip().split(":")
    if len(parts) > 2 or not all(_INT.fullmatch(part.strip()) for part in parts):
        choices.reject("nnodes", "a number of nodes or MIN:MAX", hint="--nnodes 2 or --nnodes 2:4")
    fewest, most = int(parts[0]), int(parts[-1])
    if not 0 < fewest <= most:
        choices.reject("nnodes", "0 < MIN <= MAX", hint="--nnodes 2 or --nnodes 2:4")
    return fewest, most


def key_values(choices: Choices, dest: str, texts: Iterable[str]) -> dict[str, str]:
    """Return `k=v,k=v` texts as one mapping; the first `=` splits, quotes around a key or value are dropped.

    Raises:
        ConfigError: a pair has no key or no value.
    """
    pairs: dict[str, str] = {}
    for pair in (part for text in texts if text.strip() for part in text.split(",")):
        key, _, value = (_unquoted(part) for part in pair.partition("="))
        if not key or not value:
            raise ConfigError(
                f"{_name(choices, dest)}: {_hidden(pair)!r} has no {'value' if key else 'key'}",
                hint="KEY=VALUE,KEY=VALUE",
            )
        pairs[key] = value
    return pairs


def _name(choices: Choices, dest: str) -> str:
    """Return where the option's value is from, without the value: it may hold a secret."""
    return choices.origin(dest).split(" ", 1)[-1]


def _hidden(pair: str) -> str:
    """Return a malformed pair without what may be a secret: only a lone key or value-less pair is shown."""
    key, separator, value = pair.partition("=")
    return f"{key}={'…' if value else ''}" if separator else key


def _unquoted(text: str) -> str:
    return text.strip().strip("\"'").strip()


def exit_codes(choices: Choices, dest: str) -> tuple[int, ...]:
    """Return a list of codes and ranges in rising order; none where none was given.

    Raises:
        ConfigError: an item is neither a code nor a range of codes from 1 to 255.
    """
    codes: set[int] = set()
    for item in (choices.text(dest) or "").split(",") if choices.chosen(dest) else ():
        first, dash, last = (part.strip() for part in item.partition("-"))
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= 255):
            choices.reject(dest, f"codes or ranges from 1 to 255, not {item.strip()!r}", hint="3,64-78")
        codes.update(range(int(first), int(last) + 1))
    return tuple(sorted(codes))


def signal_names(choices: Choices) -> tuple[tuple[str, ...], list[str]]:
    """Return `--signals-to-handle` as known signal names, and a line for each that is left out, as torch does."""
    import signal

    dest = "signals_to_handle"
    known = signal.Signals.__members__  # aliases too
    names: list[str] = []
    lines: list[str] = []
    for item in (part.strip() for part in (choices.text(dest) or "").split(",")):
        name = item.upper() if item.upper().startswith("SIG") else f"SIG{item.upper()}"
        if not item:
            continue
        if name not in known:
            hint = nearest(name, sorted(known))
            lines.append(
                f"{_name(choices, dest)}: no signal is called {item!r}; left out" + (f". Try: {hint}" if hint else "")
            )
        elif name in _SIGNAL_UNHANDLED:
            lines.append(f"{_name(choices, dest)}: {name} can't be handled by any process; left out")
        elif name not in names:
            names.append(name)
    return tuple(names), lines


def preemption_signal(choices: Choices) -> str:
    """Return `--preemption-signal` as a signal's name; empty: there is none.

    Raises:
        ConfigError: it is none, or one that no process can handle, or that is the agent's own.
    """
    import signal

    dest = "preemption_signal"
    text = choices.text(dest) or ""
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    if text and (name not in signal.Signals.__members__ or name in {*_SIGNAL_UNHANDLED, "SIGCHLD"}):
        choices.reject(dest, "the name of a signal that a process can handle", hint="USR1")
    return name if text else ""


def hooks_off_and_named(choices: Choices) -> tuple[tuple[str, ...], dict[str, dict[str, str]]]:
    """Return the names of `-p no:NAME`, and for each other name the options that were typed for it.

    Raises:
        ConfigError: a value is of another form.
    """
    off: list[str] = []
    named: dict[str, dict[str, str]] = {}
    for text in choices.texts("plugin"):
        prefix, colon, rest = text.partition(":")
        name = text.partition("=")[0].rpartition(":")[0].strip()
        if prefix == "no" and rest.strip():
            off.append(rest.strip())
        elif "=" in text and name:
            pairs = text.partition("=")[0].rpartition(":")[2] + text[text.index("=") :]
            named.setdefault(name, {}).update(key_values(choices, "plugin", [pairs]))
        elif colon and prefix and rest and "=" not in text:
            named.setdefault(text.strip(), {})
        else:
            needed = "no:NAME, to leave the hook NAME out, NAME:KEY=VALUE for its options, or module:Class for another"
            raise ConfigError(f"-p {text!r}: needed {needed}", hint=f"-p no:{rest or text}")
    return tuple(off), named


def nearest(text: str, names: Iterable[str]) -> str:
    """Return the name most like `text`, empty where none is like it."""
    import difflib

    return next(iter(difflib.get_close_matches(text, list(names), n=1, cutoff=0.6)), "")

"""Readers of options with a format of their own, or with bounds that depend on the run. No I/O."""

import re
import signal
from collections.abc import Iterable

from elastic_core.errors import ConfigError, nearest
from elastic_core.option_spec import OptionSpec
from elastic_core.options.choices import Choices

_INT = r"[+-]?\d+"
_SIZE = r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?"
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIGNAL_UNHANDLED = frozenset(("SIGKILL", "SIGSTOP"))


def integer(choices: Choices, dest: str, *, least: int = 0, most: int | None = None) -> int:
    """Return the value as a whole number within bounds that the caller computes.

    Raises:
        ConfigError: It is not such a number.
    """
    spec = OptionSpec(name=dest, type="int", least=least, most=most)
    return int(choices.converted(dest, choices.text(dest) or "", spec))


def seconds(choices: Choices, dest: str) -> float:
    """Return a duration in seconds; the option has a default, or was given.

    Raises:
        ConfigError: It is not a valid duration.
    """
    return float(choices.converted(dest, choices.text(dest) or ""))


def size_bytes(choices: Choices, dest: str, *, at_least: int) -> int:
    """Return a size in bytes, from a number with the suffix K, M, G or none (K is 1024).

    Raises:
        ConfigError: It is not a size, or too small.
    """
    match = re.fullmatch(_SIZE, (choices.text(dest) or "").strip(), re.IGNORECASE)
    size = int(float(match[1]) * _UNITS[match[2].upper()]) if match else -1
    if size < at_least:
        needed = f"a size of at least {at_least} bytes, a number with K, M, G or nothing behind it"
        choices.reject(dest, needed, hint=f"--{choices.options[dest].flag} 100M")
    return size


def comma_list(text: str) -> tuple[str, ...]:
    """Return the names of a comma list: two commas in a row are a comma in a name; empty names are ignored."""
    names = (name.replace("\0", ",") for name in text.replace(",,", "\0").split(","))
    return tuple(name for name in names if name)


def unprintable(text: str) -> str:
    """Return what is expected instead of a name for lines, documents and keys. Empty if the name is valid.

    A name must be printable (and so UTF-8), and not empty.
    """
    return "" if text and text.isprintable() else "a name of printable characters"


def name_of(choices: Choices, dest: str) -> str:
    """Return the value of an option with the `fault` `unprintable`.

    Raises:
        ConfigError: It is empty, or not printable.
    """
    return str(choices.converted(dest, choices.text(dest) or ""))


def node_range(choices: Choices) -> tuple[int, int]:
    """Return `--nnodes` as (fewest, most) nodes.

    Raises:
        ConfigError: It is neither `N` nor `MIN:MAX`, or not 0 < MIN <= MAX.
    """
    parts = (choices.text("nnodes") or "").strip().split(":")
    if len(parts) > 2 or not all(re.fullmatch(_INT, part.strip()) for part in parts):
        choices.reject("nnodes", "a number of nodes or MIN:MAX", hint="--nnodes 2 or --nnodes 2:4")
    fewest, most = int(parts[0]), int(parts[-1])
    if not 0 < fewest <= most:
        choices.reject("nnodes", "0 < MIN <= MAX", hint="--nnodes 2 or --nnodes 2:4")
    return fewest, most


def key_values(choices: Choices, dest: str, texts: Iterable[str]) -> dict[str, str]:
    """Return `k=v,k=v` texts as one mapping. The first `=` splits; quotes around keys and values are removed.

    Raises:
        ConfigError: A pair has no key or no value.
    """
    pairs: dict[str, str] = {}
    for pair in (part for text in texts if text.strip() for part in text.split(",")):
        key, _, value = (part.strip().strip("\"'").strip() for part in pair.partition("="))
        if not key or not value:
            raise ConfigError(
                f"{_name(choices, dest)}: {_hidden(pair)!r} has no {'value' if key else 'key'}; expected KEY=VALUE",
                hint="KEY=VALUE,KEY=VALUE",
            )
        pairs[key] = value
    return pairs


def _name(choices: Choices, dest: str) -> str:
    # The origin without the value, which may contain a secret.
    return choices.origin(dest).split(" ", 1)[-1]


def _hidden(pair: str) -> str:
    # A value may be a secret, so it is never shown.
    key, separator, value = pair.partition("=")
    return f"{key}={'…' if value else ''}" if separator else key


def exit_codes(choices: Choices, dest: str) -> tuple[int, ...]:
    """Return a list of exit codes and ranges in rising order. Empty if not given.

    Raises:
        ConfigError: An item is neither a code nor a range of codes from 1 to 255.
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
    """Return the signals of `--signals-to-handle`, and a line for each that is ignored, as torch does."""
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
    """Return the name of `--preemption-signal`. Empty if not given.

    Raises:
        ConfigError: The signal does not exist, cannot be handled by a process, or is used by the agent.
    """
    dest = "preemption_signal"
    text = choices.text(dest) or ""
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    if text and (name not in signal.Signals.__members__ or name in {*_SIGNAL_UNHANDLED, "SIGCHLD"}):
        choices.reject(dest, "the name of a signal that a process can handle", hint="USR1")
    return name if text else ""


def hooks_off_and_named(choices: Choices) -> tuple[tuple[str, ...], dict[str, dict[str, str]]]:
    """Return the names of `-p no:NAME`, and the typed options of each other name.

    Raises:
        ConfigError: A value has another form.
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
            raise ConfigError(f"-p: {text!r}; expected {needed}", hint=f"-p no:{rest or text}")
    return tuple(off), named

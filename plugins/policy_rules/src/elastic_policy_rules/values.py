"""The interpretation of scalars in a rule file: durations, counts, ranges, names, patterns."""

import math
import re
import signal
from collections.abc import Iterable, Mapping
from fnmatch import translate
from typing import Final

from elastic_core.api import DeviceFault, FailureClass
from elastic_policy_rules.book import Pattern
from elastic_policy_rules.document import Scalar
from elastic_policy_rules.problems import nearest

MAX_PATTERN_CHARS: Final = 1_000
MAX_TEXT_CHARS: Final = 8_192
"""The number of characters of a message or log that are searched."""
MAX_NAME_CHARS: Final = 300
_PROGRAM_BYTES: Final = 1 << 20

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_NUMBER: Final = re.compile(r"\d{1,12}(?:\.\d{1,9})?")
_DURATION: Final = re.compile(r"(?:\d{1,12}(?:\.\d{1,9})?(?:ms|[smhd]))+")
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")
_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_GLOB: Final = re.compile(r"[\w.*?]+")
_LONGEST_S: Final = 366 * 86_400.0


class UnfitError(Exception):
    """A value has none of the expected forms."""

    def __init__(self, what: str, hint: str = "") -> None:
        """Keep the observed and expected values, and the suggestion."""
        super().__init__(what)
        self.what = what
        self.hint = hint


def duration(value: Scalar) -> float:
    """Return seconds: `90`, `90s`, `1.5h`, `1h30m`."""
    text = value.text.strip().lower()
    if _NUMBER.fullmatch(text):
        seconds = float(text)
    elif _DURATION.fullmatch(text):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    else:
        raise UnfitError(f"{value.text!r}; expected a duration", "30s, 5m, 1h30m or 2d")
    if seconds > _LONGEST_S:
        raise UnfitError(f"{value.text!r} is longer than a year", "30s, 5m, 1h30m or 2d")
    return seconds


def positive(value: Scalar) -> float:
    """Return seconds, above 0."""
    seconds = duration(value)
    if seconds <= 0:
        raise UnfitError(f"{value.text!r}; expected more than 0", "30s, 5m, 1h30m or 2d")
    return seconds


def whole(value: Scalar, low: int, high: int) -> int:
    """Return a whole number within bounds."""
    text = value.text.strip()
    number = int(text) if re.fullmatch(r"\d{1,9}", text) else -1
    if not low <= number <= high:
        raise UnfitError(f"{value.text!r}; expected a whole number from {low} to {high}", str(max(low, min(high, 3))))
    return number


def number(value: Scalar, low: float, high: float) -> float:
    """Return a number within bounds."""
    try:
        found = float(value.text)
    except ValueError:
        found = math.nan
    if not low <= found <= high:
        raise UnfitError(f"{value.text!r}; expected a number from {low:g} to {high:g}", f"{max(low, min(high, 0.2)):g}")
    return found


def word(value: Scalar, known: Iterable[str]) -> str:
    """Return one of the known words."""
    words = list(known)
    text = value.text.strip().lower()
    if text not in words:
        raise UnfitError(f"{value.text!r}; expected one of {listed(words)}", meant(text, words))
    return text


_MEANT: Final = {
    "stop": "fail or done",
    "abort": "fail",
    "retry": "restart",
    "success": "done",
    "succeed": "done",
    "continue": "ignore",
    "skip": "ignore",
    "exclude": "restart, with exclude: node",
}


def meant(text: str, words: Iterable[str]) -> str:
    """Return the known word most similar to this text."""
    known = list(words)
    other = _MEANT.get(text, "")
    return other if other.split(",")[0].split(" ")[0] in known else nearest(text, known)


def listed(words: Iterable[str]) -> str:
    """Return `a, b or c`."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def yes(value: Scalar) -> bool:
    """Return whether the value is true."""
    return word(value, ("yes", "no", "true", "false", "on", "off")) in ("yes", "true", "on")


def span(value: Scalar, high: int, what: str) -> tuple[int, int]:
    """Return the ends of `3` or `64-78`."""
    parts = _RANGE.fullmatch(value.text.strip())
    first = int(parts[1]) if parts else -1
    last = int(parts[2] or first) if parts else -1
    if not 0 <= first <= last <= high:
        raise UnfitError(f"{value.text!r}; expected {what} 0 to {high}, or a range", "3 or 64-78")
    return first, last


_SIGNALS: Final[Mapping[str, int]] = {name: int(number) for name, number in signal.Signals.__members__.items()}


def signal_number(value: Scalar) -> int:
    """Return the number of `SIGKILL`, `kill` or `9`."""
    text = value.text.strip().upper()
    if re.fullmatch(r"\d{1,2}", text) and 1 <= int(text) <= signal.NSIG - 1:
        return int(text)
    name = text if text.startswith("SIG") else f"SIG{text}"
    if name not in _SIGNALS:
        near = nearest(name, [known.lower() for known in _SIGNALS]).upper()
        raise UnfitError(f"no signal is called {value.text!r}", near or "SIGKILL or 9")
    return _SIGNALS[name]


def _plain(name: str) -> str:
    return " ".join(re.split(r"[\s_-]+", name.strip().lower()))


CLASS_NAMES: Final[Mapping[str, frozenset[FailureClass]]] = {
    **{kind.name.lower().replace("_", " "): frozenset({kind}) for kind in FailureClass},
    **{_plain(kind.value): frozenset({kind}) for kind in FailureClass},
    "device": frozenset({FailureClass.DEVICE, FailureClass.OOM_DEVICE}),
    "out of memory": frozenset({FailureClass.OOM_HOST, FailureClass.OOM_DEVICE}),
    "oom": frozenset({FailureClass.OOM_HOST, FailureClass.OOM_DEVICE}),
}
"""The names of the classes, with blanks in place of `-` and `_`."""


def failure_classes(value: Scalar) -> frozenset[FailureClass]:
    """Return the classes that a word names."""
    found = CLASS_NAMES.get(_plain(value.text))
    if found is None:
        near = CLASS_NAMES.get(nearest(_plain(value.text), CLASS_NAMES), frozenset())
        hint = " or ".join(sorted(kind.value for kind in near)) or f"one of {listed(k.value for k in FailureClass)}"
        raise UnfitError(f"no class of failure is called {value.text!r}", hint)
    return found


def device_fault(value: Scalar) -> DeviceFault:
    """Return the fault of an accelerator that a word names."""
    known = {_plain(fault.value): fault for fault in DeviceFault}
    found = known.get(_plain(value.text))
    if found is None:
        hint = nearest(_plain(value.text), known) or f"one of {listed(known)}"
        raise UnfitError(f"no fault of a device is called {value.text!r}", hint)
    return found


def exception_pattern(value: Scalar) -> Pattern:
    """Return a pattern for types: one with a dot for the whole dotted name, else for its last part."""
    text = value.text.strip()
    if not _GLOB.fullmatch(text) or len(text) > MAX_NAME_CHARS:
        raise UnfitError(f"{value.text!r}; expected the name of an exception", "ValueError, or torch.*Error")
    found = re.compile(translate(text)).match
    if "." in text:
        return Pattern(text, lambda name: found(name[:MAX_NAME_CHARS]) is not None)
    return Pattern(text, lambda name: found(name[:MAX_NAME_CHARS].rpartition(".")[2]) is not None)


def node_pattern(value: Scalar) -> Pattern:
    """Return a pattern for node ids."""
    text = value.text.strip()
    if not text or len(text) > MAX_NAME_CHARS:
        raise UnfitError(f"{value.text!r}; expected a node's id", "gpu-1?, or *@10.0.3.*")
    found = re.compile(translate(text)).match
    return Pattern(text, lambda name: found(name[:MAX_NAME_CHARS]) is not None)


def text_pattern(value: Scalar) -> Pattern:
    """Return a regular expression in RE2's syntax, which takes time linear in the text."""
    import re2  # only where there are such patterns

    if not value.text or len(value.text) > MAX_PATTERN_CHARS:
        needed = f"expected 1 to {MAX_PATTERN_CHARS} characters"
        raise UnfitError(f"a pattern of {len(value.text)} characters; {needed}", "a part of the message")
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _PROGRAM_BYTES
    try:
        compiled = re2.compile(value.text, options)
    except (re2.error, UnicodeEncodeError) as err:
        told = err.args[0].decode(errors="replace") if err.args and isinstance(err.args[0], bytes) else str(err)
        raise UnfitError(f"{value.text!r}; expected a pattern: {told}", _pattern_hint(value.text, told)) from err
    search = compiled.search

    def found(text: str) -> bool:
        # RE2 takes valid UTF-8 only; what a worker wrote may be anything.
        clean = text[-MAX_TEXT_CHARS:].encode("utf-8", "replace").decode("utf-8")
        return search(clean) is not None

    return Pattern(value.text, found)


def _pattern_hint(pattern: str, told: str) -> str:
    if "perl operator" in told:
        return "a pattern without (?=…), (?!…) and (?<…): such can't be matched in linear time"
    if "escape sequence" in told and re.search(r"\\[1-9]", pattern):
        return "a pattern without \\1: it can't be matched in linear time"
    return f"\\Q{pattern}\\E, to match it as plain text" if "\\E" not in pattern else ""

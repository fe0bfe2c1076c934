"""Texts of the page: times, durations, shares, and characters that a browser does not show."""

import datetime
from collections.abc import Sequence

from markupsafe import Markup

from elastic_core.api.tools import duration_text
from elastic_report.model import Ratio

_KEPT = "\n\t \N{NARROW NO-BREAK SPACE}"


def visible(text: str) -> str:
    r"""Return the text with each invisible character as an escape such as `\x1b` or `\u202e`.

    Line ends and tabs are kept, other white space becomes a blank. The result can be encoded as UTF-8.
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in _KEPT else _escape(sign) for sign in text)


def _escape(sign: str) -> str:
    code = ord(sign)
    if sign.isspace() and code >= 0xA0 and code not in (0x2028, 0x2029):
        return " "
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def finished(value: object) -> object:
    """Return a template's value with invisible characters as escapes, and nothing for `None`."""
    if value is None:
        return ""
    return visible(value) if type(value) is str else value


def moment(ns: int, *, date: bool = True) -> Markup:
    """Return a `time` element in UTC, which the page's script shows in the reader's time zone."""
    try:
        at = datetime.datetime.fromtimestamp(ns // 1_000_000_000, datetime.UTC)
    except (OverflowError, ValueError, OSError):  # a damaged record
        return Markup("<span>at an unknown time</span>")
    shown = at.strftime("%Y-%m-%d %H:%M:%S" if date else "%H:%M:%S")
    millis = ns // 1_000_000 % 1000
    stamp = at.strftime("%Y-%m-%dT%H:%M:%S") + f".{millis:03d}Z"
    title = at.strftime("%Y-%m-%d %H:%M:%S") + f".{millis:03d} UTC"
    return Markup('<time datetime="{}" title="{}" data-date="{}">{} UTC</time>').format(stamp, title, int(date), shown)


def duration(seconds: float | None) -> str:
    """Return a duration such as `3 min 5 s`; `not known` for `None`."""
    if seconds is None:
        return "not known"
    return duration_text(seconds) if seconds >= 0.0005 else "0 s"


def durations(low: float, high: float) -> str:
    """Return one duration, or a range if the two differ by a second or more."""
    if high - low < 1:
        return duration(low)
    return f"{duration(low)} to {duration(high)}"


def share(part: float, whole: float) -> str:
    """Return a percentage with one digit after the point; `< 0.1 %` for a small part that is not zero."""
    percent = 100 * part / whole if whole > 0 else 0.0
    if 0 < percent < 0.1:
        return "< 0.1 %"
    return f"{percent:.1f} %"


def ratio(value: Ratio | None) -> str:
    """Return `66.9 %`, or `61.2 % to 66.9 %` for a range."""
    if value is None:
        return "not known"
    low, high = f"{100 * value.low:.1f}", f"{100 * value.high:.1f}"
    return f"{low} %" if low == high else f"{low} % to {high} %"


def number(value: int) -> str:
    """Return an integer with a thin space between thousands."""
    return f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}") if abs(value) >= 10_000 else str(value)


def count(value: int, noun: str) -> str:
    """Return `1 node` or `12 nodes`."""
    return f"{number(value)} {noun}{'' if value == 1 else 's'}"


def some(names: Sequence[str], most: int = 8) -> str:
    """Return the names by comma; a long list is cut: `a, b and 992 more`."""
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {number(len(names) - most)} more"


def shortened(text: str, most: int) -> str:
    """Return the text; from a longer one whole lines are cut out in the middle."""
    if len(text) <= most:
        return text
    head, tail = text[: most // 3], text[-(most - most // 3) :]
    head, tail = head[: head.rfind("\n") + 1] or head, tail[tail.find("\n") + 1 :] or tail
    return f"{head}[{number(len(text) - len(head) - len(tail))} characters left out]\n{tail}"

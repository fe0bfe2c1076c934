"""Checks of the arguments of the run's handle, in the call itself, on the hook's own thread."""

import signal
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, TypeGuard, TypeVar

from msgspec.structs import replace

from elastic_core.encoding import decode_json, encode_json
from elastic_core.reports import FailureReport
from elastic_core.types import Record

_Handle = TypeVar("_Handle")
_Kind = TypeVar("_Kind", bound=Record)
Check = Callable[[object], object]

MOST_TEXT: Final = 10_000
"""The longest reason or line, in characters: some are kept in the run's store, in the record of each node."""
MOST_NAME: Final = 1_000
"""The longest name of a topic, an offer or an event, in characters."""
MOST_BYTES: Final = 1 << 20
"""The most bytes of the arguments of one call, as JSON."""
MOST_DATA: Final = 1 << 14
"""The most bytes of an answer or a conclusion: the leader reads the answers of all nodes."""
LONGEST_S: Final = 1e10
"""The longest time in seconds."""
LEAST_PERIOD_S: Final = 0.01
"""The shortest period of a repeated call, in seconds."""


class Fields(Record, frozen=True, kw_only=True):
    """A mapping in the form that JSON has."""

    fields: dict[str, object]


def is_seconds(value: object) -> TypeGuard[float]:
    """Return whether a value is a number of seconds, from 0 up, that a timer accepts."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LONGEST_S


def _wrong(value: object, needed: str) -> TypeError:
    shown = repr(value)
    return TypeError(f"got {shown if len(shown) <= 60 else type(value).__name__}; expected {needed}")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(value, "text")
    text = value if len(value) <= MOST_TEXT else f"{value[:MOST_TEXT]}…"
    return text.encode("utf-8", "backslashreplace").decode()


def _name(value: object) -> str:
    text = _text(value)
    if not text.strip() or len(text) > MOST_NAME:
        raise _wrong(value, f"a name of 1 to {MOST_NAME} characters")
    return text


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(value, "True or False")
    return value


def _integer(value: object) -> int:
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise _wrong(value, "a whole number of 64 bits")
    return value


def _seconds(bounds: str, least: float = 0.0, most: float = LONGEST_S) -> Callable[[object], float]:
    def check(value: object) -> float:
        if not is_seconds(value) or not least <= value <= most:
            raise _wrong(value, f"a number of seconds{bounds}")
        return float(value)

    return check


def _delay(value: object) -> float:
    in_the_past = isinstance(value, int | float) and -LONGEST_S <= value < 0
    return 0.0 if in_the_past else _seconds("")(value)


def _grace(value: object) -> float | None:
    return None if value is None else _seconds(" from 0 up, or None")(value)


_period = _seconds(f" from {LEAST_PERIOD_S:g} up", least=LEAST_PERIOD_S)
_within = _seconds(" from 0 to 60", most=60)  # meanwhile no other question is published


def _data(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise _wrong(value, "bytes")
    if len(value) > MOST_DATA:
        raise ValueError(f"got {len(value)} bytes; expected {MOST_DATA} at most")
    return value


def _function(value: object) -> object:
    if not callable(value):
        raise _wrong(value, "a function")
    return value


def _fields(value: object) -> dict[str, object]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise _wrong(value, "a mapping from names to values")
    return _copy(Fields(fields=dict(value)), Fields, "values").fields


def _copy(record: Record, kind: type[_Kind], what: str) -> _Kind:
    # A copy, made by JSON: the hook cannot change it, and the agent can write it.
    try:
        raw = encode_json(record)
    except (TypeError, ValueError, OverflowError, RecursionError) as err:
        raise TypeError(f"got {what} that JSON can't hold ({err}); expected text, numbers, lists and mappings") from err
    if len(raw) > MOST_BYTES:
        raise ValueError(f"got {len(raw)} bytes as JSON; expected {MOST_BYTES} at most")
    return decode_json(raw, kind)


def _report(value: object) -> FailureReport:
    if not isinstance(value, FailureReport):
        raise _wrong(value, "a FailureReport")
    workers = value.workers if isinstance(value.workers, list | tuple) else ()
    for seconds in (getattr(fault, "quiet_s", 0.0) for fault in workers):
        if not is_seconds(seconds):
            raise TypeError(f"quiet_s: {_wrong(seconds, 'a number of seconds from 0 up')}")
    plain = replace(value, fields=dict(value.fields)) if isinstance(value.fields, Mapping) else value
    report = _copy(plain, FailureReport, "fields")
    for fault in report.workers:
        if fault.signal and fault.signal not in signal.valid_signals():
            raise TypeError(f"signal: {_wrong(fault.signal, 'the number of a signal, or 0')}")
    return replace(report, summary=_text(report.summary).strip() or "no summary")


# The check of each argument of the handle's methods; it returns the copy that the agent keeps.
_CHECKS: Final[Mapping[str, Mapping[str, Check]]] = {
    "report": {"report": _report},
    "ask_restart": {"reason": _text, "by_user": _flag},
    "ask_drain": {"reason": _text, "grace_s": _grace, "by_user": _flag},
    "notice": {"text": _text, "named": _flag},
    "publish": {"fields": _fields},
    "record": {"name": _name, "values": _fields},
    "keep_run_dir": {"because": _text},
    "call_later": {"delay_s": _delay, "call": _function},
    "call_every": {"period_s": _period, "call": _function},
    "offer": {"name": _name, "answer": _function},
    "track_progress": {"furthest_step": _function},
    "ask_nodes": {"topic": _name, "within_s": _within},
    "answer_nodes": {"serial": _integer, "data": _data},
    "conclude_nodes": {"serial": _integer, "data": _data},
    "agree": {"topic": _name, "value": _integer},
}


def checks_arguments(handle: type[_Handle]) -> type[_Handle]:
    """Return a class of `RunHandle`s whose methods check their arguments first.

    A wrong argument raises TypeError or ValueError in the hook's own call. Mappings and records are kept as copies, in
    the form that JSON has.
    """
    for name, checks in _CHECKS.items():
        setattr(handle, name, _checked(getattr(handle, name), name, checks))
    return handle


def _checked(method: Callable[..., Any], name: str, checks: Mapping[str, Check]) -> Callable[..., Any]:
    positions = tuple(checks)

    def check(parameter: str, value: object) -> object:
        try:
            return checks[parameter](value) if parameter in checks else value
        except (TypeError, ValueError) as err:  # msgspec's errors are ValueErrors
            raise (TypeError if isinstance(err, TypeError) else ValueError)(f"{name}: {parameter}: {err}") from err

    @wraps(method)
    def checked(self: object, *args: object, **kwargs: object) -> Any:  # noqa: ANN401  # as the method gives
        given = [check(parameter, value) for parameter, value in zip(positions, args, strict=False)]
        named = {parameter: check(parameter, value) for parameter, value in kwargs.items()}
        return method(self, *given, *args[len(given) :], **named)

    return checked

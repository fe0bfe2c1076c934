"""The causes of an exception, from the exception itself or from a traceback's text. Pure.

A cause is a tuple of texts: relation, class, message and place (`data.py:12`; empty: not known). The relation is `from`
or `while handling` for the innermost exception of the chain, and `member` for a member of a group. It is `in …` (`in
DataLoader worker 3`) for an exception of another process or thread that has its traceback in the message. That one
comes first.
"""

from __future__ import annotations

import re

from elastic_core.processes.errors.frames import TRACEBACK_HEADER, parse_frames, place_of, without_launcher

# Not from typing: the hook in a failing worker imports this.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    Cause = tuple[str, str, str, str]

FROM, HANDLING, MEMBER, ELSEWHERE = "from", "while handling", "member", "in "
MAX_CAUSES = 8
MAX_NOTES = 8
MAX_TEXT_CHARS = 2_048
_MAX_RELAYED_CHARS = 131_072
_PLACED_FRAMES = 64

_LINKS = {
    "The above exception was the direct cause of the following exception:": FROM,
    "During handling of the above exception, another exception occurred:": HANDLING,
}
_EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.<>]*)(?:: ?(?P<message>.*))?$", re.DOTALL)
_RELAYS = (
    re.compile(r"\s*Caught \S+ (?P<where>in .*?)\.?\s*\nOriginal (?=Traceback \(most recent call last\):)"),
    re.compile(r"\s*-- (?P<where>Process \d+) terminated with the following error:\n"),
)
_REMOTE = ("concurrent.futures.process._RemoteTraceback", "multiprocessing.pool.RemoteTraceback")


def causes_of(error: BaseException) -> list[Cause]:
    """Return the causes of `error`, at most `MAX_CAUSES`. Empty if there are none beyond its own class and message."""
    relation, inner, remote = _innermost(error)
    found = relayed(text_of(error)) or (_remote(remote) if inner is error else [])
    if isinstance(inner, BaseExceptionGroup):
        return [*found, *_members(inner)][:MAX_CAUSES]
    if inner is error:
        return found
    # The cause may come from another process.
    behind = relayed(text_of(inner)) or _remote(remote)
    if behind:
        return [(relation, *behind[-1][1:])]
    return [*found, (relation, name_of(type(inner)), _short(text_of(inner)), place(inner))][:MAX_CAUSES]


def notes_of(error: BaseException) -> list[str]:
    """Return the notes of `error`, of its members and of its causes, the outermost first."""
    _, inner, _ = _innermost(error)
    members = list(_leaves(inner)) if isinstance(inner, BaseExceptionGroup) else []
    known = {id(one): one for one in (error, inner, *members)}
    notes = [note for one in known.values() for note in _list(getattr(one, "__notes__", ()))]
    return [_short(note) for note in notes[:MAX_NOTES] if isinstance(note, str)]


def causes_in(message: str, callstack: str) -> list[Cause]:
    """Return the same from text alone: an exception's message, and its traceback with its causes."""
    found = relayed(message)
    if found:
        return found
    relation, chain = _chain_in(callstack)
    return [(relation, *chain[0])] if len(chain) > 1 else []


def relayed(message: str) -> list[Cause]:
    """Return the exception of another process or thread whose traceback is in `message`, and its cause."""
    for pattern in _RELAYS:
        match = pattern.match(message[:MAX_TEXT_CHARS])
        if match:
            where = re.sub(r"^in ", "", match["where"]).replace(" worker process ", " worker ")
            where = where[0].lower() + where[1:] if where.startswith("Process ") else where
            return _from_elsewhere(message[match.end() :], ELSEWHERE + where)
    return []


def text_of(error: BaseException) -> str:
    """Return an exception's message. Never raises, even if `__str__` does."""
    try:
        text = str(error)
    except Exception as reason:  # noqa: BLE001  # a broken __str__ is reported as the text
        return f"<no text: __str__ raised {type(reason).__name__}>"
    return (
        text if len(text) <= _MAX_RELAYED_CHARS else text[: _MAX_RELAYED_CHARS // 2] + text[-_MAX_RELAYED_CHARS // 2 :]
    )


def name_of(kind: type[BaseException]) -> str:
    """Return the name as in Python's tracebacks."""
    if kind.__module__ in ("builtins", "__main__"):
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def _innermost(error: BaseException) -> tuple[str, BaseException, str]:
    # The relation of the chain's innermost exception to `error`, that exception, and a remote traceback behind it.
    relation, current, seen = FROM, error, {id(error)}
    while not isinstance(current, BaseExceptionGroup):
        following = current.__cause__
        link = FROM
        if following is None and not current.__suppress_context__:
            following, link = current.__context__, HANDLING
        if following is None or id(following) in seen:
            break
        if name_of(type(following)) in _REMOTE:
            return relation, current, text_of(following)
        relation = link if current is error else relation
        seen.add(id(following))
        current = following
    return relation, current, ""


def _remote(text: str) -> list[Cause]:
    return _from_elsewhere(text.strip().strip('"'), ELSEWHERE + "a process of the pool") if text else []


def _from_elsewhere(text: str, relation: str) -> list[Cause]:
    link, chain = _chain_in(text[:_MAX_RELAYED_CHARS])
    if not chain:
        return []
    return [(relation, *chain[-1]), *([(link, *chain[0])] if len(chain) > 1 else [])]


def _members(group: BaseException) -> list[Cause]:
    found: list[Cause] = []
    for leaf in _leaves(group):
        kind, message, at = name_of(type(leaf)), text_of(leaf), place(leaf)
        relation, inner, remote = _innermost(leaf)
        behind = relayed(message) or _remote(remote)
        if behind:
            _, kind, message, at = behind[0]
        elif inner is not leaf and not isinstance(inner, BaseExceptionGroup):
            message = f"{message}, {relation} {type(inner).__name__}: {_short(text_of(inner), MAX_TEXT_CHARS // 4)}"
        found.append((MEMBER, kind, _short(message), at))
    return found


def _leaves(group: BaseException) -> Iterator[BaseException]:
    # The first members of a group and its nested groups.
    waiting, count = [group], 0
    while waiting and count < MAX_CAUSES:
        current = waiting.pop()
        if isinstance(current, BaseExceptionGroup):
            waiting.extend(reversed(current.exceptions[:MAX_CAUSES]))
        else:
            count += 1
            yield current


def _chain_in(text: str) -> tuple[str, list[tuple[str, str, str]]]:
    # The link above the last exception of `text`, then class, message and place of each, innermost first.
    parts: list[list[str]] = [[]]
    links: list[str] = []
    for line in text.splitlines():
        link = _LINKS.get(line.strip())
        if link is None:
            parts[-1].append(line)
        else:
            links.append(link)
            parts.append([])
    found: list[tuple[str, str, str]] = []
    for part in reversed(parts):
        headers = [index for index, line in enumerate(part) if line == TRACEBACK_HEADER]
        read = _read(part[headers[-1] + 1 :]) if headers else None
        if read is None:
            break
        found.insert(0, read)
        if len(headers) > 1:
            break  # the one before it is unrelated
    return (links[-1] if links else FROM), found


def _read(lines: list[str]) -> tuple[str, str, str] | None:
    frames, count = parse_frames(lines)
    match = _EXCEPTION.match("\n".join(lines[count:]).rstrip())
    if match is None:
        return None
    return match["type"], _short(match["message"] or ""), place_of(without_launcher(frames))


def place(error: BaseException) -> str:
    """Return the place that raised an exception: the innermost line of the user's code. Empty if not known."""
    entries = []
    step = error.__traceback__  # `traceback` has a function for this, and imports a tokenizer
    while step is not None:
        entries.append((step.tb_frame.f_code.co_filename, step.tb_lineno))
        step = step.tb_next
    if isinstance(error, SyntaxError) and error.filename:
        entries.append((error.filename, error.lineno or 0))
    return place_of(entries[-_PLACED_FRAMES:])


def _list(notes: object) -> list[object]:
    return list(notes) if isinstance(notes, list | tuple) else []


def _short(text: str, limit: int = MAX_TEXT_CHARS) -> str:
    text = text.encode("utf-8", "backslashreplace").decode()  # JSON has no lone surrogates
    return text if len(text) <= limit else f"{text[: limit // 2]} … {text[-limit // 2 :]}"

"""Safe text for JSON and for terminals: file names and arguments may have invalid Unicode or control characters."""

import re
import threading
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from elastic_core.types import Record

_T = TypeVar("_T")

_making = threading.Lock()
_decoders: dict[object, msgspec.json.Decoder[Any]] = {}
_SPACE = r"[^\S ]+"


def clean(text: str) -> str:
    """Return `text` as one line without characters that control a terminal or forge a line of a log.

    Line ends, tabs and other white space become a blank. Invisible characters (escape and control characters, changes
    of direction, characters without width) become `?`. Bytes that are not valid Unicode are kept for the encoder.
    """
    if text.isprintable():
        return text
    flat = re.sub(_SPACE, " ", text)
    return "".join(sign if sign.isprintable() or "\ud800" <= sign <= "\udfff" else "?" for sign in flat)


def printable_json(text: str) -> str:
    r"""Return JSON with escapes such as `\u009b` for characters that may control a terminal: the same content."""
    if text.isprintable():
        return text
    import json  # rarely needed

    return "".join(sign if sign.isprintable() or sign == "\n" else json.dumps(sign)[1:-1] for sign in text)


def decode_json(raw: bytes | str, kind: type[_T]) -> _T:
    """Return the document; one that is nested too deep is rejected.

    Raises:
        msgspec.DecodeError: The text is not JSON, or of another kind.
        UnicodeDecodeError: The bytes are not UTF-8.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        with _making:  # msgspec crashes if two threads inspect one class for the first time
            decoder = _decoders.setdefault(kind, msgspec.json.Decoder(kind))
    try:
        return decoder.decode(raw)  # type: ignore[no-any-return]  # the decoder's type
    except RecursionError as err:
        raise msgspec.DecodeError("nested too deep") from err


def encode_json(record: Record) -> bytes:
    r"""Return the record as JSON. Text that is not valid Unicode, such as a file name, is written as `\udcff`."""
    try:
        return msgspec.json.encode(record)
    except UnicodeEncodeError:
        return msgspec.json.encode(_expressible(msgspec.to_builtins(record)))


def _expressible(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_expressible(key): _expressible(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_expressible(each) for each in value]
    return value


def joined_spans(parts: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the first and last rank of each gapless range; `parts` are such ranges, in any order."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(parts):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return tuple(found)


def rank_ranges(ranks: Iterable[int]) -> str:
    """Return `0, 1, 4-7` for 0, 1, 4, 5, 6, 7."""
    spans = joined_spans((rank, rank) for rank in ranks)
    return ", ".join(
        f"{low}-{high}" if high > low + 1 else ", ".join(map(str, sorted({low, high}))) for low, high in spans
    )

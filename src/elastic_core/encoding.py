"""Records as JSON, whatever their text holds: file names and arguments need not be Unicode."""

import msgspec

from elastic_core.types import Record


def encode_json(record: Record) -> bytes:
    r"""Return the record as JSON. What UTF-8 can't express (a byte of a file name, say) is written as `\udcff`."""
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

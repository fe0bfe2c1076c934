"""Masks secrets in the texts of failures, events and reasons: a report is sent to other people."""

import re
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:  # the hook masks texts too, and must not load what commands need
    from elastic_core.api.commands import Incident

_MASK: Final = "***"
_SECRETS: Final = re.compile(
    r"(?<=://)(?P<user>[^/@\s:]*):(?:(?!://)\S)+@"  # a password may contain `/` and `@`
    r"|(?P<name>(?:password|passwd|passphrase|secret|token|api[_-]?key)[\"']?(?:=|: ?))"
    r"(?P<quote>[\"']?)(?!\d+\b)[^\s\"',;&]+",
    re.IGNORECASE,
)


def masked(text: str) -> str:
    """Return a text with masked passwords in its URLs, and masked values of names such as `password=` and `token=`.

    Whole numbers are kept, as those of tokens of a text or a round.
    """
    return _SECRETS.sub(_hidden, text) if ":" in text or "=" in text else text


def masked_incident(incident: "Incident") -> "Incident":
    """Return an incident with its texts masked."""
    content = msgspec.to_builtins(incident)
    changed = _masked(content)
    return incident if changed == content else msgspec.convert(changed, type(incident))


def _hidden(match: re.Match[str]) -> str:
    if match["name"] is None:
        return f"{match['user']}:{_MASK}@"
    return f"{match['name']}{match['quote']}{_MASK}"


def _masked(value: object) -> object:
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, dict):
        return {name: _masked(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_masked(each) for each in value)
    return value

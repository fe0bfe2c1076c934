"""Masks secrets in output: values with secret names, and credentials in URLs."""

import re
from collections.abc import Sequence

_MASK = "***"
_WORDS = frozenset(
    (
        "password",
        "passwd",
        "passphrase",
        "pass",
        "secret",
        "secrets",
        "token",
        "auth",
        "credential",
        "credentials",
        "apikey",
    )
)
_SPLIT = re.compile(r"[^a-z0-9]+")
# A password may contain `/` and `@`. The pattern rather hides too much than shows a part.
_CREDENTIALS = re.compile(r"(?<=://)([^/@\s:]*):((?:(?!://)\S)+)@")


def names_secret(name: str) -> bool:
    """Return whether the name of a variable, option or key indicates a secret."""
    words = [word for word in _SPLIT.split(name.lower()) if word]
    return bool(_WORDS.intersection(words)) or words[-1:] == ["key"]


def masked_value(name: str, value: str) -> str:
    """Return the value, masked if its name indicates a secret."""
    return _MASK if value and names_secret(name) else masked_text(value)


def masked_text(text: str) -> str:
    """Return a text with masked passwords in its URLs (`scheme://user:password@host`)."""
    return _CREDENTIALS.sub(rf"\1:{_MASK}@", text)


def masked_arguments(argv: Sequence[str]) -> list[str]:
    """Return a command with the values of secret options masked (`--api-key X`, `--api-key=X`)."""
    shown: list[str] = []
    secret_follows = False
    for word in argv:
        name, equals, value = word.partition("=")
        if secret_follows and not word.startswith("-"):
            shown.append(_MASK)
            secret_follows = False
            continue
        is_secret_option = word.startswith("-") and names_secret(name)
        secret_follows = is_secret_option and not equals
        shown.append(f"{name}={_MASK}" if equals and value and names_secret(name) else masked_text(word))
    return shown

"""The import of torch at its first use, since no distribution requires it, and the releases that are supported."""

import sys

TYPE_CHECKING = False  # not from typing: workers import this module
if TYPE_CHECKING:
    from typing import Any

SUPPORTED = ((2, 13), (2, 15))
"""The first and the last supported release."""
TORCH_HINT = "pip install 'torch>=2.13,<2.16'"
"""The command that installs a supported torch."""
_EXPECTED = "expected torch 2.13 to 2.15"


def torch_missing(needed_by: str, python: str = sys.executable) -> str:
    """Return the text of the error for an interpreter without torch."""
    return f"{needed_by}: no torch is installed for {python}; {_EXPECTED}"


def import_torch(needed_by: str) -> "Any":  # noqa: ANN401  # a module
    """Return the module torch, after importing it and `torch.distributed`.

    Args:
        needed_by: The function or option that uses torch, for the message.

    Raises:
        ConfigError: torch is not installed, cannot be imported, or its release is not supported.
    """
    from importlib import import_module

    try:
        torch = import_module("torch")
        release = str(getattr(torch, "__version__", ""))
        fault = "" if is_supported_torch(release) else f"torch {release} is installed for {sys.executable}"
        if not fault:
            import_module("torch.distributed")
    except Exception as error:  # noqa: BLE001  # a broken installation raises anything
        reason = f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(":. ")
        gone = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        fault = f"no torch is installed for {sys.executable}" if gone else f"torch can't be imported ({reason})"
    if not fault:
        return torch
    from elastic_core.errors import ConfigError

    raise ConfigError(f"{needed_by}: {fault}; {_EXPECTED}", hint=TORCH_HINT)


def is_supported_torch(release: str) -> bool:
    """Return whether a release is supported. A user's own build without numbers is."""
    numbers = tuple(int(each) for each in release.split(".")[:2] if each.isdecimal())
    return len(numbers) < len(SUPPORTED[0]) or SUPPORTED[0] <= numbers <= SUPPORTED[1]

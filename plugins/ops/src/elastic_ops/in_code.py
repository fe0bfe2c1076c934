"""The exporters of a run for handlers that code of its process has configured: no option names them."""

import sys
from typing import Any, Final

from elastic_core.api import AgentHook, HookSettings
from elastic_core.api.plugins import register_hook

NAME: Final = "metrics-and-events"
_CONFIGURED: Final = ("elastic_ops.metrics.api", "elastic_ops.events.recording")


def offer_exporters() -> None:
    """Have each run of this process ask whether a handler was configured. Called: by what has a `configure`."""
    register_hook(NAME, _exporters)


def _exporters(settings: HookSettings) -> AgentHook | None:
    if not any(map(_is_configured, _CONFIGURED)):
        return None
    from elastic_ops.exporters.hook import Exporters

    return Exporters(settings)


def _is_configured(module: str) -> bool:
    loaded: Any = sys.modules.get(module)  # what nobody has loaded, nobody has configured
    return loaded is not None and bool(loaded.is_configured())

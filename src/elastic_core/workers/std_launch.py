"""`Std(entrypoint=…, log_dir=…).run()`, an older spelling of `elastic_core.launcher.launch`."""

import importlib
from typing import Any


class StdLaunch:
    """Keeps what `launch` is to be called with."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  # those of `launch`
        """Run nothing yet."""
        self._options = options

    def run(self) -> dict[int, Any]:
        """Run to the end, as `launch` does."""
        launcher = importlib.import_module("elastic_core.launcher")  # above this room
        results: dict[int, Any] = launcher.launch(**self._options)
        return results

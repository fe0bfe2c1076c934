"""A metric handler that appends JSON lines to a file."""

import json
import os
from typing import Final

from elastic_ops.metrics.handler import MetricData, MetricHandler, split_series

MODE: Final = 0o644


class JsonlMetricHandler(MetricHandler):
    """Writes one JSON object a line: `timestamp`, `group_name`, `name`, `value`, and `labels` if there are any.

    Each line is one write, so that several processes may share a file. Threading: any.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the file; its content is kept.

        Raises:
            OSError: it can't be opened.
        """
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, MODE)

    def emit(self, metric_data: MetricData) -> None:
        """Write one line.

        Raises:
            OSError: it could not be written.
        """
        fields: dict[str, object] = dict(metric_data._asdict())
        fields["name"], labels = split_series(metric_data.name)
        if labels:
            fields["labels"] = labels
        os.write(self._fd, json.dumps(fields).encode() + b"\n")

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

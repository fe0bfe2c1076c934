"""Times on the command lines of `elastic status` and `elastic ctl`."""

import click
import pytest

from elastic_ops.run_target import duration


@pytest.mark.parametrize(("text", "seconds"), [("5", 5.0), ("500ms", 0.5), ("2m", 120.0), (30.0, 30.0)])
def test_a_time_is_read_as_elastic_run_reads_it(text, seconds):
    assert duration(0.1)(text) == seconds


@pytest.mark.parametrize("text", ["soon", "0", "50ms", "-1"])
def test_what_is_none_or_too_short_is_refused(text):
    with pytest.raises(click.BadParameter, match=r"expected seconds, 0\.1 or more, or a time as 30s, 5m or 1h"):
        duration(0.1)(text)

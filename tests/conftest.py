"""What holds for the tests of these folders: GPUs, and what is told at the end."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from support import lacks

GPU_NODES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/kfd")


def pytest_runtest_setup(item):
    """Skip what is marked `gpu` where there can be none, before torch is imported to find out."""
    if item.get_closest_marker("gpu") and not any(Path(node).exists() for node in GPU_NODES):
        lacks("a GPU")


def pytest_terminal_summary(terminalreporter):
    """Show what the tests with random faults have done, and by which seed: passed ones are silent otherwise."""
    reports = (report for outcome in terminalreporter.stats.values() for report in outcome)
    calls = (report for report in reports if getattr(report, "when", "") == "call")
    told = [text for report in calls for name, text in report.user_properties if name == FAULTS]
    if told:
        terminalreporter.section(FAULTS)
        for text in told:
            terminalreporter.write_line(text)


FAULTS = "random faults"
"""The property of a test's report that is shown at the end."""

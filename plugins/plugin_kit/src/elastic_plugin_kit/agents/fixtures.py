"""The fixture `agents`: in a `conftest.py`, `pytest_plugins = ["elastic_plugin_kit.agents.fixtures"]`."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from elastic_plugin_kit.agents.run import Agents, run_agents


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Callable[..., Agents]]:
    """A function with the parameters of `run_agents`, whose agents end with the test; files are in `tmp_path`.

    What the agents have printed is shown where the test fails.
    """
    started: list[Agents] = []
    with ExitStack() as stack:

        def start(nodes: int = 1, *options: str, **more: Any) -> Agents:  # noqa: ANN401  # those of run_agents
            folder = tmp_path / f"agents{len(started)}"
            folder.mkdir()
            started.append(stack.enter_context(run_agents(nodes, *options, **{"folder": folder, **more})))
            return started[-1]

        yield start
        for run in started:
            sys.stdout.write(f"{run.printed()}\n")

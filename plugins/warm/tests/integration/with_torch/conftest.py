"""Ranks that take commands, in interpreters that fork from one that has imported torch."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from torch_server import elastic_with_torch, torch_python

__all__ = ["elastic_with_torch", "torch_python"]

WORKER = Path(__file__).parent / "state_worker.py"


class Rank:
    """A process that takes commands; `kill` ends it."""

    def __init__(self, python, kind, options, env):
        self.process = subprocess.Popen(
            [python, WORKER, kind, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | env,
        )

    def begin(self, name, **arguments):
        self.process.stdin.write(json.dumps([name, arguments]) + "\n")
        self.process.stdin.flush()

    def result(self):
        """Return the answer to the oldest command that has none; `None` if the process has ended."""
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def ask(self, name, **arguments):
        self.begin(name, **arguments)
        return self.result()

    def end(self):
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


class Ranks:
    """The processes of a test, and the groups that they form."""

    def __init__(self, python, folder):
        self._python, self._folder = python, folder
        self._groups = 0
        self._made = []

    def new(self, kind="replicated", env=None, **options):
        self._made.append(Rank(self._python, kind, options, env or {}))
        return self._made[-1]

    def round(self, ranks, nodes=None, name="round", **layout):
        """Let processes form a group in this order, and return what `sync` has returned in each.

        Args:
            ranks: The processes.
            nodes: The node of each.
            name: The command of the workers.
            layout: How they divide their state.
        """
        self._groups += 1
        store = str(self._folder / f"group-{self._groups}")
        nodes = nodes or [0] * len(ranks)
        for number, rank in enumerate(ranks):
            rank.begin(name, store=store, rank=number, size=len(ranks), node=nodes[number], **layout)
        return [rank.result() for rank in ranks]

    def all(self, ranks, name, **arguments):
        for rank in ranks:
            rank.begin(name, **arguments)
        return [rank.result() for rank in ranks]

    def end(self):
        for rank in self._made:
            rank.end()


@pytest.fixture
def ranks(torch_python, tmp_path):
    made = Ranks(torch_python, tmp_path)
    yield made
    made.end()

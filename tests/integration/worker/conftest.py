"""Fixtures of the tests in these folders."""

import textwrap

import pytest

from worker_kit import Worker


@pytest.fixture
def run(tmp_path):
    def start(source, *arguments, **environment):
        script = tmp_path / "train.py"
        script.write_text(textwrap.dedent(source))
        return Worker(tmp_path, [str(script), *arguments], environment)

    return start

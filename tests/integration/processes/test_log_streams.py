"""Filters and rotation in a worker group: streams are whole at the end, and descriptors come back."""

from pathlib import Path

import pytest

from elastic_core.errors import WorkerError
from elastic_core.processes.spec import StreamPlan
from group_kit import GroupKit, all_closed_since, open_fds


@pytest.fixture
def kit(tmp_path):
    before = open_fds()
    kit = GroupKit(tmp_path)
    try:
        yield kit
    finally:
        kit.close()
    all_closed_since(before)


def plan(kit, name, **more):
    chosen = {"file": kit.log(0, name), "inherit": False, "max_bytes": 1024, "backups": 9} | more
    return StreamPlan(**chosen)


def test_a_rotated_stream_without_a_console_is_whole_when_the_exit_is_told(kit):
    code = "import sys\nfor n in range(500): print('line', n)\nsys.stderr.write('last words')"
    kit.group.start([kit.launch(code, stdout=plan(kit, "out"), stderr=plan(kit, "err"))])
    kit.run_until_exits(1)
    full = sorted(kit.folder.glob("0.out.*"), key=lambda path: -int(path.suffix[1:]))
    assert len(full) == 4
    text = "".join(path.read_text() for path in (*full, Path(kit.log(0))))
    assert text == "".join(f"line {n}\n" for n in range(500))
    assert kit.said(0, "err") == "last words"
    kit.stop()
    assert not (kit.folder / "console.out").read_bytes()


def test_filters_see_what_a_broken_console_does_not(kit):
    filtered = str(kit.folder / "filtered.log")
    stdout = plan(kit, "out", console=True, prefix="[p]:", filters=("7",), filtered_file=filtered)
    kit.console.stdout.close()  # nobody reads it any more
    kit.group.start([kit.launch("for n in range(20): print('line', n)", stdout=stdout)])
    kit.run_until_exits(1)
    kit.stop()
    assert Path(filtered).read_text() == "[p]:line 7\n[p]:line 17\n"


@pytest.mark.parametrize("missing", ["file", "filtered_file"])
def test_a_file_that_can_not_be_opened_is_named_and_leaves_nothing_open(kit, missing):
    paths = {"file": kit.log(0), "filtered_file": str(kit.folder / "filtered.log")}
    paths[missing] = str(kit.folder / "nowhere" / "x.log")
    stdout = plan(kit, "out", console=True, filters=("x",), **paths)
    with pytest.raises(WorkerError, match=r"can't open log file '.*nowhere/x\.log': ENOENT"):
        kit.group.start([kit.launch("pass", stdout=stdout)])

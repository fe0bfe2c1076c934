"""Stacks as they are read."""

import threading

import pytest

from elastic_watch.collectives.calls import call_of
from elastic_watch.hangs.hang_report import RankReport
from elastic_watch.stacks import WorkerStack, faulthandler_frames, innermost_user, py_spy_frames

DUMP = """\
Thread 0x00007f1111111111 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/u/loader.py", line 5 in prefetch

Current thread 0x00007f2222222222 (most recent call first):
  File "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2806 in all_reduce
  File "/u/train.py", line 40 in step
  File "/u/train.py", line 60 in <module>
  File "<frozen runpy>", line 88 in _run_code
"""
STEP = ("/u/train.py", 40, "step", "")


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A folder is looked at as long as a busy machine needs."""
    monkeypatch.setattr("elastic_watch.stacks._FOLDER_S", 60.0)


def innermost(frames):
    return WorkerStack(frames=frames, user_frame=innermost_user(frames)).place


def test_main_thread_of_a_dump_is_read_outermost_first_without_the_launcher():
    frames = faulthandler_frames(DUMP)
    assert [frame[2] for frame in frames] == ["<module>", "step", "all_reduce"]
    assert innermost(frames) == "train.py:40"


@pytest.mark.parametrize("folder", ["/opt/pytorch", "/home/u/build", "/v/lib/python3.11/site-packages"])
@pytest.mark.parametrize("file", ["distributed/distributed_c10d.py", "autograd/graph.py", "_ops.py"])
def test_torch_is_not_the_users_own_code_wherever_it_is_installed(folder, file):
    assert innermost((STEP, (f"{folder}/torch/{file}", 1, "wait", ""))) == "train.py:40"


def test_script_in_a_folder_named_torch_is_the_users_own_code():
    assert innermost((("/u/torch/train.py", 40, "step", ""), ("/u/torch/data/load.py", 5, "load", ""))) == "load.py:5"


FILES = ("utils/train.py", "distributed/utils.py", "distributed/train.py", "_config.py")


@pytest.mark.parametrize("file", FILES)
def test_script_in_folders_with_the_names_of_torchs_is_the_users_own_code(tmp_path, file):
    (tmp_path / "torch").mkdir()
    frames = (STEP, (str(tmp_path / "torch" / file), 5, "load", ""))
    stack = WorkerStack(frames=frames, user_frame=innermost_user(frames))
    assert stack.place == f"{file.rpartition('/')[2]}:5"
    assert call_of(frames, line_of=lambda file, line: "time.sleep(60)") == ""
    assert not RankReport(local_rank=0, global_rank=0, pid=1, stack=stack).waits


@pytest.mark.parametrize("file", FILES)
def test_torchs_own_folder_is_known_by_what_it_has_in_it(tmp_path, file):
    (tmp_path / "torch" / "_C").mkdir(parents=True)
    assert innermost((STEP, (str(tmp_path / "torch" / file), 5, "load", ""))) == "train.py:40"


def test_folder_that_is_not_seen_in_time_counts_as_torchs(tmp_path, monkeypatch):
    goes_on = threading.Event()

    class Hanging:
        def __init__(self, *parts):
            pass

        def is_dir(self):
            goes_on.wait(60)
            raise PermissionError

    monkeypatch.setattr("elastic_watch.stacks._FOLDER_S", 0.01)
    monkeypatch.setattr("elastic_watch.stacks.Path", Hanging)
    frames = (STEP, (str(tmp_path / "torch" / FILES[0]), 5, "load", ""))
    assert [innermost(frames), innermost(frames)] == ["train.py:40"] * 2
    goes_on.set()


def test_last_of_several_dumps_counts():
    assert innermost(faulthandler_frames(DUMP + DUMP.replace("line 40", "line 41"))) == "train.py:41"


def test_main_thread_is_the_last_one_whoever_took_the_signal():
    text = DUMP.replace("Current thread", "Thread").replace("Thread 0x00007f1", "Current thread 0x00007f1")
    assert innermost(faulthandler_frames(text)) == "train.py:40"


def test_of_too_many_threads_it_is_the_one_that_took_the_signal():
    other = 'Thread 0x00007f3333333333 (most recent call first):\n  File "/u/other.py", line 1 in run\n'
    assert innermost(faulthandler_frames(f"{DUMP}\n{other}\n...\n")) == "train.py:40"


@pytest.mark.parametrize(
    "text", ["", "no stack", "Current thread 0x1 (most recent call first):\n  <no Python frame>\n"]
)
def test_nothing_to_read_is_no_frame(text):
    assert faulthandler_frames(text) == ()
    assert innermost(faulthandler_frames(text)) == ""


def test_py_spy_is_read_likewise():
    text = (
        "Process 7: python train.py\nPython v3.11.7\n\n"
        'Thread 9 (idle): "Thread-1"\n    wait (threading.py:324)\n'
        'Thread 7 (active+gil): "MainThread"\n    all_reduce (torch/distributed/x.py:9)\n    step (/u/train.py:40)\n'
        "    <module> (/u/train.py:60)\n"
    )
    assert py_spy_frames(text)[-2:] == (STEP, ("torch/distributed/x.py", 9, "all_reduce", ""))
    assert py_spy_frames("Error: permission denied") == ()

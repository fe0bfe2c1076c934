"""Workers' output through the agent's loop: exact in files, whole lines on the console."""

import os
import re
import statistics
import time
from pathlib import Path

import pytest

from elastic_core.processes.spec import StreamPlan
from group_kit import GroupKit, all_closed_since, open_fds
from patience import kept
from proc_kit import is_alive
from support import wait_for
from time_limits import SEEN_S


@pytest.fixture
def kit(tmp_path):
    before = open_fds()
    kit = GroupKit(tmp_path)
    try:
        yield kit
    finally:
        kit.close()
    all_closed_since(before)


def teed(kit, code, rank=0, **more):
    def plan(name):
        return StreamPlan(file=kit.log(rank, name), console=True, inherit=False, prefix=f"[default{rank}]:")

    return kit.launch(code, rank, stdout=plan("out"), stderr=plan("err"), **more)


def run_all(kit, *launches):
    kit.group.start(launches)
    kit.run_until_exits(len(launches), within_s=60)
    kit.stop()
    assert kit.console.flush()
    return Path(kit.folder / "console.out").read_bytes()


def test_progress_bars_of_eight_ranks_are_never_torn(kit):
    code = """
import os, sys, time
for i in range(2000):
    sys.stderr.write(f"\\r{i:4d}/2000 |{'#' * (i // 50):<40}| rank {os.environ['RANK']}")
    if i % 7 == 0: sys.stderr.flush()
sys.stderr.write("\\n")
"""
    run_all(kit, *(teed(kit, code, rank) for rank in range(8)))
    text = Path(kit.folder / "console.err").read_bytes()
    pieces = re.findall(rb"[^\r\n]*[\r\n]", text)
    assert b"".join(pieces) == text
    bar = re.compile(rb"\[default(\d)\]: *(\d+)/2000 \|#*\s*\| rank (\d)[\r\n]")
    seen = {rank: [] for rank in range(8)}
    for piece in pieces:
        if re.fullmatch(rb"\[default\d\]:\r", piece):  # what stands before the first \r: an empty line
            continue
        match = bar.fullmatch(piece)
        assert match, piece
        assert match[1] == match[3]
        seen[int(match[1])].append(int(match[2]))
    assert all(numbers == list(range(2000)) for numbers in seen.values())


@pytest.mark.parametrize("workers", [1, 4])
def test_no_line_is_torn_lost_or_out_of_order(kit, workers):
    lines = 100_000
    code = f"import sys\nfor i in range({lines}): print('step', i, 'x' * (i % 97))"
    text = run_all(kit, *(teed(kit, code, rank) for rank in range(workers)))
    seen = [0] * workers
    for line in text.splitlines(keepends=True):
        rank = int(line[8:9])
        number = seen[rank]
        assert line == b"[default%d]:step %d %s\n" % (rank, number, b"x" * (number % 97))
        seen[rank] += 1
    assert seen == [lines] * workers
    expected = "".join(f"step {i} {'x' * (i % 97)}\n" for i in range(lines))
    assert all(kit.said(rank) == expected for rank in range(workers))


def test_ranks_of_several_digits(kit):
    text = run_all(kit, *(teed(kit, "print('here')", rank) for rank in (9, 10, 11)))
    assert sorted(text.splitlines()) == [b"[default10]:here", b"[default11]:here", b"[default9]:here"]


def test_binary_output_is_exact_in_the_file_and_passes_the_console(kit):
    code = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 3000); sys.stdout.buffer.write(b'end')"
    text = run_all(kit, teed(kit, code))
    data = bytes(range(256)) * 3000 + b"end"
    assert Path(kit.log(0)).read_bytes() == data
    assert text.replace(b"[default0]:", b"") == data + b"\n"


def test_an_enormous_line_is_broken_and_the_file_is_exact(kit):
    code = "import sys; sys.stdout.write('x' * 2_500_000 + '\\n')"
    text = run_all(kit, teed(kit, code))
    assert Path(kit.log(0)).read_bytes() == b"x" * 2_500_000 + b"\n"
    pieces = text.splitlines()
    assert 2 <= len(pieces) <= 4
    assert all(piece.startswith(b"[default0]:x") for piece in pieces)
    assert sum(len(piece) - 11 for piece in pieces) == 2_500_000


def test_streams_are_kept_apart(kit):
    run_all(kit, teed(kit, "import sys; print('out'); print('err', file=sys.stderr)"))
    assert (kit.folder / "console.out").read_bytes() == b"[default0]:out\n"
    assert (kit.folder / "console.err").read_bytes() == b"[default0]:err\n"
    assert (kit.said(0, "out"), kit.said(0, "err")) == ("out\n", "err\n")


def test_without_a_file_lines_still_have_their_prefix(kit):
    plan = StreamPlan(console=True, inherit=False, prefix="[p]:")
    assert run_all(kit, kit.launch("print('x')", stdout=plan)) == b"[p]:x\n"


def test_a_file_alone_is_appended_to_and_a_discarded_stream_vanishes(kit):
    Path(kit.log(0)).write_text("earlier\n")
    discard = StreamPlan(inherit=False)
    text = run_all(kit, kit.launch("import sys; print('x'); print('y', file=sys.stderr)", stderr=discard))
    assert text == b""
    assert kit.said() == "earlier\nx\n"


def test_the_last_words_are_in_the_file_when_the_exit_is_told(kit):
    kit.group.start([teed(kit, "import sys; sys.stderr.write('Traceback: boom'); sys.exit(1)")])
    kit.run_until_exits(1)
    assert kit.said(0, "err") == "Traceback: boom"
    kit.stop()
    assert (kit.folder / "console.err").read_bytes() == b"[default0]:Traceback: boom\n"


def test_a_grandchild_that_keeps_the_pipe_open_holds_nothing_up(kit):
    # It cleared its environment, left the session and lowered the limit that marks it: without a subreaper nobody can
    # find it.
    code = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-c",
        "import os,resource,time\\nresource.setrlimit(10, (1, 1))\\n"
        "open(os.sys.argv[1]+'.part','w').write(f'{os.getpid()}\\\\n')\\n"
        "os.rename(os.sys.argv[1]+'.part', os.sys.argv[1])\\ntime.sleep(60)", os.environ["FOLDER"] + "/far"], {})
while not os.path.exists(os.environ["FOLDER"] + "/far"): time.sleep(0.01)
print("done", end="")
"""
    kit.group.start([teed(kit, code)])
    kit.run_until_exits(1)
    far = kit.pid_in("far")
    try:
        took_s = kit.stop()
        kept(took_s, 1)
        assert is_alive(far)
        assert (kit.folder / "console.out").read_bytes() == b"[default0]:done\n"
    finally:
        os.kill(far, 9)


def test_a_full_disk_is_told_once_and_training_goes_on(kit):
    plan = StreamPlan(file="/dev/full", console=True, inherit=False, prefix="[p]:")
    code = "import sys\nfor i in range(50000): print(i)"
    text = run_all(kit, kit.launch(code, stdout=plan))
    assert kit.exits[0].code == 0
    assert len(text.splitlines()) == 50000
    (notice,) = kit.notices
    assert "'/dev/full'" in notice
    assert "No space left" in notice


def test_a_line_reaches_the_console_at_once(kit):
    code = "import time\nfor i in range(20):\n    print(time.monotonic()); time.sleep(0.013 if i % 2 else 0.05)"
    kit.group.start([teed(kit, code)])
    path, seen, late_s = kit.folder / "console.out", 0, []
    while not kit.exits:
        kit.reactor.turn(0.02)
        now_s = time.monotonic()
        lines = path.read_text().splitlines()
        late_s += [now_s - float(line.partition(":")[2]) for line in lines[seen:]]
        seen = len(lines)
    kit.stop()
    assert seen == 20
    kept(statistics.median(late_s), SEEN_S)


def test_an_idle_worker_costs_no_wake_ups(kit):
    kit.group.start([teed(kit, "import time; print('ready'); time.sleep(60)")])
    kit.run_until_said("ready\n")

    def sleeps(seconds):
        began_s = time.monotonic()
        kit.reactor.turn(seconds)  # returns early if anything wakes it
        return time.monotonic() - began_s >= seconds

    # A nap may follow, and the work on its log; what wakes the loop again and again never lets it sleep so long.
    wait_for(lambda: sleeps(0.5), within_s=4, what="a sleep of 0.5 s")
    kit.stop()

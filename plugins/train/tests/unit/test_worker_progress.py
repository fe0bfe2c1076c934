"""The steps and marks that a worker writes into its page, as the agent reads them."""

import os
import subprocess
import sys
import threading
from itertools import islice
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

import elastic_train
from elastic_core.api import ConfigError
from elastic_train import marks, restoring, saving, stops
from elastic_train import stop_page as layout
from elastic_train.progress import WorkerProgress, progress_of, step_above
from elastic_train.worker_pages import WorkerPages


def begin_anew(monkeypatch):
    """Make this process one that has not used its page yet."""
    stops._in_forked_child()
    monkeypatch.setattr(stops, "_looked", False)
    monkeypatch.setattr(stops, "_sought", False)
    stops._words[layout.ASKED] = 1


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """Return the pages of one worker, which is this process."""
    pages = WorkerPages(1, tmp_path, all_count=False)
    for name, value in pages.places()[0].items():
        monkeypatch.setenv(name, value)
    begin_anew(monkeypatch)
    yield pages
    stops._in_forked_child()
    pages.close()


def words_of(pages):
    return pages._pages[0].words


def child(script):
    """Run a child of this worker, which is not the worker."""
    return subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout


# --- steps


def test_a_worker_that_calls_nothing_is_absent(pages):
    assert pages.progress() == {}


def test_first_and_last_step_have_their_times(pages):
    before = monotonic()
    assert not stops.should_stop()
    alive = pages.progress()[0]
    assert (alive.first_step, alive.first_step_s, alive.step, alive.step_s) == (None, None, None, None)
    assert before <= alive.alive_s <= monotonic()
    for step in (5, 6, 9):
        between = monotonic()
        stops.should_stop(step=step)
    own = pages.progress()[0]
    assert (own.first_step, own.step, own.alive_s) == (5, 9, alive.alive_s)
    assert own.alive_s < own.first_step_s < between <= own.step_s <= monotonic()
    assert (own.above_s, own.marks, own.marks_dropped) == (None, (), 0)


def test_the_last_steps_have_their_times(pages):
    assert pages.step_times() == {0: ()}
    for step in range(40, 340, 3):
        stops.should_stop(step=step)
    ((rank, found),) = pages.step_times().items()
    assert (rank, [step for step, _ in found]) == (0, list(range(211, 338, 3)))
    assert found[-1][1] / 1e9 == pages.progress()[0].step_s
    assert [ns for _, ns in found] == sorted(ns for _, ns in found)


def test_the_first_step_above_another_has_its_time(pages):
    pages.note_above(6)
    for step in (5, 6):
        stops.should_stop(step=step)
    assert pages.progress()[0].above_s is None
    for step in (7, 8):
        stops.should_stop(step=step)
    own = pages.progress()[0]
    assert own.first_step_s < own.above_s < own.step_s
    pages.note_above(6)  # again: its time stays
    stops.should_stop(step=9)
    assert pages.progress()[0].above_s == own.above_s


def test_a_step_that_is_set_late_counts_from_then_on(pages):
    stops.should_stop(step=7)
    pages.note_above(3)
    assert pages.progress()[0].above_s is None
    stops.should_stop(step=8)
    own = pages.progress()[0]
    assert own.above_s == own.step_s
    pages.note_above(20)
    assert pages.progress()[0].above_s is None
    stops.should_stop(step=21)
    assert pages.progress()[0].above_s > own.above_s
    pages.note_above(layout.NONE)
    stops.should_stop(step=22)
    assert pages.progress()[0].above_s is None


def test_the_next_round_begins_without_progress(pages):
    pages.note_above(0)
    stops.should_stop(step=1)
    with saving():
        pass
    pages.renew()
    assert pages.progress() == {}
    assert words_of(pages)[layout.HIGH] == layout.NONE


def test_a_page_of_another_version_has_no_progress(pages):
    stops.should_stop(step=1)
    words_of(pages)[layout.MAGIC] += 1
    assert pages.progress() == {}


def test_steps_of_an_older_version_in_the_worker_have_no_times(pages):
    words_of(pages)[layout.STEP] = words_of(pages)[layout.FIRST] = 4
    assert pages.progress() == {0: WorkerProgress(first_step=4, step=4)}


@pytest.mark.parametrize(("text", "step"), [("4711", 4711), ("0", 0), ("-1", -1)])
def test_the_step_above_which_is_asked(text, step):
    assert step_above({"above": text}) == step
    assert step_above({}) is None


@pytest.mark.parametrize("text", ["", "x", "1.5", "-2", str(1 << 63)])
def test_what_is_no_step_is_rejected(text):
    with pytest.raises(ConfigError, match=r"above: '.*'; expected a step, or -1 for none"):
        step_above({"above": text})


# --- marks


def test_saves_and_restores_are_marked(pages):
    before = monotonic()
    with restoring():
        ((kind, _, end),) = pages.progress()[0].marks
        assert (kind, end) == ("restore", None)
    again = saving()
    with again:
        pass
    with again:
        assert [mark[2] is None for mark in pages.progress()[0].marks] == [False, False, True]
    own = pages.progress()[0]
    assert [mark[0] for mark in own.marks] == ["restore", "save", "save"]
    times = [time for _, begin, end in own.marks for time in (begin, end)]
    assert times == sorted(times)
    assert before <= own.alive_s <= times[0] <= times[-1] <= monotonic()


def test_a_worker_that_only_saves_is_not_waited_for_at_a_planned_stop(pages):
    with saving():
        pass
    assert not pages.looked_at()
    pages.ask("b joined", 30.0)
    assert not pages.read({0: 0})[0].looks
    assert stops.should_stop()  # its first call counts, with the marks before it
    assert pages.looked_at()
    assert len(pages.progress()[0].marks) == 1


def test_a_save_within_a_save_counts_once(pages):
    with saving():
        with saving(), restoring():
            pass
        assert [mark[::2] for mark in pages.progress()[0].marks] == [("save", None)]
    with saving():
        pass
    assert [mark[0] for mark in pages.progress()[0].marks] == ["save", "save"]


def test_a_save_in_another_thread_extends_the_mark(pages):
    opened, ends = threading.Event(), threading.Event()

    def save():
        with saving():
            opened.set()
            ends.wait()

    thread = threading.Thread(target=save)
    thread.start()
    opened.wait()
    with restoring():
        pass
    assert [mark[::2] for mark in pages.progress()[0].marks] == [("save", None)]
    ends.set()
    thread.join()
    assert [mark[2] is None for mark in pages.progress()[0].marks] == [False]


def test_a_save_that_raises_ends_its_mark(pages):
    with pytest.raises(OSError, match="disk full"), saving():
        raise OSError("disk full")
    ((_, begin, end),) = pages.progress()[0].marks
    assert begin <= end


def test_the_last_64_marks_stay_and_the_rest_is_counted(pages):
    for number in range(layout.MARK_SLOTS + 5):
        with restoring() if number % 2 else saving():
            pass
    own = pages.progress()[0]
    assert (len(own.marks), own.marks_dropped) == (layout.MARK_SLOTS, 5)
    assert own.marks[0][0] == "restore"  # number 5, from 0
    begins = [begin for _, begin, _ in own.marks]
    assert begins == sorted(begins)


def test_a_kind_that_a_later_version_writes_is_ignored(pages):
    for _ in range(2):
        with saving():
            pass
    words_of(pages)[layout.MARKS_AT + layout.KIND] = 77
    own = pages.progress()[0]
    assert ([mark[0] for mark in own.marks], own.marks_dropped) == (["save"], 0)


def test_a_forked_child_writes_no_marks(pages):
    with saving():
        pid = os.fork()
        if pid == 0:
            with restoring():
                pass
            os._exit(0)
        os.waitpid(pid, 0)
        assert [mark[::2] for mark in pages.progress()[0].marks] == [("save", None)]
    pid = os.fork()
    if pid == 0:
        with restoring():
            stops.should_stop(step=99)
        os._exit(0)
    os.waitpid(pid, 0)
    own = pages.progress()[0]
    assert ([mark[0] for mark in own.marks], own.step) == (["save"], None)


def test_a_child_process_writes_none_beside_a_worker_that_does(pages):
    with saving():
        pass
    child("from elastic_train import restoring\nwith restoring(): pass")
    assert [mark[0] for mark in pages.progress()[0].marks] == ["save"]


def test_a_child_that_trains_takes_over_from_a_parent_that_only_loads(pages):
    with restoring():
        script = "from elastic_train import saving, should_stop\nshould_stop(step=3)\nwith saving(): pass"
        child(script)
    assert pages.looked_at()
    own = pages.progress()[0]
    assert (own.step, [mark[0] for mark in own.marks]) == (3, ["restore", "save"])
    assert own.marks[0][2] <= own.marks[1][1]  # ended for the parent, when the child came


def test_without_an_agent_marks_do_nothing(monkeypatch, tmp_path):
    for path in ("", "/nonexistent/fd/3", "/dev/null"):
        monkeypatch.setenv(layout.PAGE_VARIABLE, path)
        begin_anew(monkeypatch)
        with saving(), restoring():
            assert not stops.should_stop(step=1)
    stops._in_forked_child()


def test_marks_need_no_torch():
    code = "import sys\nfrom elastic_train import saving\nwith saving(): pass\nprint('torch' in sys.modules)"
    assert child(code) == "False\n"
    assert {"saving", "restoring"} <= set(elastic_train.__all__)


# --- readers beside a writer


class Recorded:
    """A page that keeps each write."""

    def __init__(self):
        self.words = [0] * (layout.PAGE_BYTES // 8)
        self.words[layout.MAGIC] = layout.MAGIC_VALUE
        self.words[layout.STEP] = self.words[layout.FIRST] = self.words[layout.HIGH] = layout.NONE
        self.words[layout.ALIVE_NS] = 1
        self.begin = list(self.words)
        self.writes = []

    def __getitem__(self, word):
        return self.words[word]

    def __setitem__(self, word, value):
        self.words[word] = value
        self.writes.append((word, value))


class Moving:
    """The same page while it is being written: each read sees some more of the writes."""

    def __init__(self, begin, writes, paces):
        self._words, self._writes, self._paces = list(begin), iter(writes), iter(paces)

    def write(self, count):
        for word, value in islice(self._writes, count):
            self._words[word] = value

    def __getitem__(self, word):
        self.write(next(self._paces, 0))
        return self._words[word]


@pytest.fixture
def recorded(monkeypatch):
    """Return a function that plays marks of these kinds, and returns the page and the true marks."""

    def play(kinds, *, last_open=False):
        page, times, true = Recorded(), iter(range(10, 1_000_000, 10)), []
        with monkeypatch.context() as patch:
            patch.setattr(stops, "progress_words", lambda: page)
            patch.setattr(marks, "monotonic_ns", lambda: next(times))
            patch.setattr(marks, "_depth", 0)
            for kind in kinds:
                true.append((layout.KINDS[kind], len(true) * 20 + 10, len(true) * 20 + 20))
                mark = marks.Mark(kind).__enter__()
                if len(true) < len(kinds) or not last_open:
                    mark.__exit__(None, None, None)
            patch.setattr(marks, "_number", 0)
        return page, true

    return play


def in_ns(found):
    return [(kind, round(begin * 1e9), None if end is None else round(end * 1e9)) for kind, begin, end in found]


@pytest.mark.parametrize("count", [1, 2, layout.MARK_SLOTS, layout.MARK_SLOTS + 1, 3 * layout.MARK_SLOTS + 7])
@pytest.mark.parametrize("last_open", [False, True])
def test_an_open_mark_is_the_last_one(recorded, count, last_open):
    page, true = recorded([layout.SAVE] * count, last_open=last_open)
    own = progress_of(page)
    expected = true[-layout.MARK_SLOTS :]
    if last_open:
        expected[-1] = (*expected[-1][:2], None)
    assert (in_ns(own.marks), own.marks_dropped) == (expected, count - len(expected))


def test_a_worker_that_ends_at_any_write_leaves_whole_marks(recorded):
    """As SIGKILL ends it: each prefix of its writes."""
    page, true = recorded([layout.SAVE, layout.RESTORE] * (layout.MARK_SLOTS // 2 + 2))
    for count in range(len(page.writes) + 1):
        cut = Moving(page.begin, page.writes, ())
        cut.write(count)
        own = progress_of(cut)
        *before, last = [*in_ns(own.marks), ("", 0, 0)][: len(own.marks)] or [("", 0, 0)]
        assert set(before) <= set(true)
        assert not own.marks or last in true or (*last[:2], last[1] + 10) in true
        made = len(own.marks) + own.marks_dropped
        assert 0 <= made - count // 7 <= 1


@given(data=st.data())
def test_a_reader_never_sees_a_mark_that_was_not_made(data):
    play = pytest.MonkeyPatch()
    kinds = data.draw(st.lists(st.sampled_from([layout.SAVE, layout.RESTORE]), max_size=150))
    page, times = Recorded(), iter(range(10, 1_000_000, 10))
    with play.context() as patch:
        patch.setattr(stops, "progress_words", lambda: page)
        patch.setattr(marks, "monotonic_ns", lambda: next(times))
        patch.setattr(marks, "_depth", 0)
        for kind in kinds:
            with marks.Mark(kind):
                pass
    true = [(layout.KINDS[kind], at * 20 + 10, at * 20 + 20) for at, kind in enumerate(kinds)]
    paces = data.draw(st.lists(st.integers(0, 40), max_size=300))
    begin = data.draw(st.integers(0, len(page.writes)))
    moving = Moving(page.begin, page.writes, paces)
    moving.write(begin)
    before = begin // 7
    own = progress_of(moving)
    found = in_ns(own.marks)
    for kind, at, end in found:
        number = (at - 10) // 20
        assert (kind, at) == true[number][:2]
        assert end in (None, true[number][2])
    assert [at for _, at, _ in found] == sorted({at for _, at, _ in found})
    assert before <= len(found) + own.marks_dropped <= len(kinds)

"""What a script asks about planned stops: without an agent, with one that this test plays, in a forked child."""

import os
import subprocess
import sys
import threading

import pytest

import elastic_core.worker
import elastic_train
from elastic_train import stop_page as layout
from elastic_train import stops
from elastic_train.holding import Seen
from elastic_train.worker_pages import WorkerPages


@pytest.fixture
def pages(tmp_path, monkeypatch):
    """Return the pages of one worker, which is this process."""
    pages = WorkerPages(1, tmp_path, all_count=False)
    for name, value in pages.places()[0].items():
        monkeypatch.setenv(name, value)
    stops._in_forked_child()
    monkeypatch.setattr(stops, "_looked", False)
    monkeypatch.setattr(stops, "_sought", False)
    stops._words[layout.ASKED] = 1
    yield pages
    stops._in_forked_child()
    pages.close()


def test_first_question_finds_out_whose_memory_it_is(pages):
    """Not the import: a spare interpreter has imported it before it is a worker."""
    pages.ask("b joined", 30.0)
    pages.answer(4)
    assert [stops.should_stop(step=step) for step in (3, 4)] == [False, True]


def test_without_an_agent_nothing_is_ever_planned():
    assert not stops.should_stop()
    assert not stops.should_stop(step=3)
    stops.ready_to_stop()


def test_agent_sees_which_step_a_rank_has_begun_and_whether_it_has_saved(pages):
    assert not pages.looked_at()
    assert pages.read({0: 5}) == {5: Seen(looks=False)}
    assert not stops.should_stop()
    assert pages.looked_at()
    assert pages.read({0: 5}) == {5: Seen(looks=True)}
    assert not stops.should_stop(step=3)
    assert pages.read({0: 5}) == {5: Seen(looks=True, step=3)}
    stops.ready_to_stop()
    assert pages.read({0: 5}) == {5: Seen(looks=True, step=3, ready=True)}
    assert pages.read({}) == {}


def test_other_code_of_the_worker_sees_the_last_step(pages):
    assert stops.last_step() is None
    assert not stops.should_stop()
    assert stops.last_step() is None
    assert not stops.should_stop(step=3)
    assert stops.last_step() == 3
    stops.begin_round()
    assert stops.last_step() is None


def test_agent_sees_how_many_steps_the_furthest_rank_has_made(pages):
    assert pages.steps_made() is None
    for step in (40, 41, 47):
        stops.should_stop(step=step)
    assert pages.steps_made() == 7
    pages.renew()
    assert pages.steps_made() is None


def test_who_names_no_step_has_its_answer_at_once(pages):
    pages.ask("b joined", 30.0)
    assert stops.should_stop()


@pytest.mark.parametrize(("agreed", "answers"), [(7, [True, True]), (8, [False, True]), (None, [False, False])])
def test_rank_waits_at_its_step_until_all_have_agreed_about_one(pages, agreed, answers):
    pages.ask("b joined", 30.0)
    found = []
    rank = threading.Thread(target=lambda: found.extend(stops.should_stop(step=step) for step in (7, 8)))
    rank.start()
    while not pages.read({0: 0})[0].waits:
        rank.join(0.001)
    assert (pages.read({0: 0})[0].step, found) == (7, [])
    pages.answer(agreed)
    rank.join()
    assert found == answers


def test_step_that_falls_is_remarked(pages):
    assert pages.remarks() == ()
    for step in (5, 4, 6):
        stops.should_stop(step=step)
    (line,) = pages.remarks()
    assert line.startswith("local rank 0: should_stop(step=4) came after a higher step")


@pytest.mark.parametrize("step", ["7", 7.5, object()])
def test_what_is_no_step_is_an_error_of_the_script(pages, step):
    with pytest.raises(TypeError, match="expected a whole number"):
        stops.should_stop(step=step)


def test_child_of_a_worker_says_nothing_for_it(pages):
    stops.should_stop(step=3)
    pages.ask("b joined", 30.0)
    pid = os.fork()
    if pid == 0:
        os._exit(int(stops.should_stop(step=99)))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert pages.read({0: 0})[0].step == 3


def test_memory_of_another_process_is_left_to_it(pages):
    script = "from elastic_train import should_stop; import sys; sys.exit(int(should_stop()))"
    stops.should_stop()
    pages.ask("b joined", 30.0)
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0  # this process has it


def test_file_says_what_is_planned_and_is_gone_with_the_round(tmp_path):
    pages = WorkerPages(2, tmp_path, all_count=True)
    files = [pages.places()[rank][layout.FILE_VARIABLE] for rank in range(2)]
    assert pages.read({0: 0, 1: 1}) == {0: Seen(looks=True), 1: Seen(looks=True)}
    pages.ask("b joined", 30.0)
    os.unlink(files[1])
    assert [seen.ready for seen in pages.read({0: 0, 1: 1}).values()] == [False, True]
    pages.close()
    assert not os.path.exists(files[0])


def test_folder_that_can_not_be_made_makes_nobody_ready(tmp_path):
    (tmp_path / "stop").write_text("in the way")
    pages = WorkerPages(1, tmp_path, all_count=True)
    pages.ask("b joined", 30.0)
    assert not pages.read({0: 0})[0].ready
    pages.close()


def test_the_core_has_these_names_where_the_distribution_is_there(monkeypatch):
    for name in [name for name, module in elastic_core.worker._OF_OTHERS.items() if module == "elastic_train"]:
        assert name in elastic_train.__all__
        assert getattr(elastic_core.worker, name) is getattr(elastic_train, name)
    monkeypatch.delattr(elastic_core.worker, "should_stop")
    monkeypatch.setitem(sys.modules, "elastic_train", None)
    with pytest.raises(ImportError, match="should_stop comes with elastic-train"):
        elastic_core.worker.should_stop  # noqa: B018  # that it is looked up is what is tried

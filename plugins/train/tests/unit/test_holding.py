"""The hold of a planned stop, a table of what follows from what; whole runs of it are in the simulation."""

import pytest

from elastic_train.holding import (
    AGREE_S,
    MARGIN_S,
    NO_STEP,
    NOBODY,
    SETTLE_S,
    Hold,
    Release,
    Seen,
    State,
    Tell,
    Topic,
    look,
    take,
)

LATE_S = SETTLE_S * 2


def hold(limit_s=30.0):
    return Hold(began_s=0.0, limit_s=limit_s)


def agreed(value, limit_s=30.0, workers=None):
    """Return a hold whose nodes have agreed about a step."""
    asked, _ = look(hold(limit_s), workers or {0: Seen(looks=True, step=4)}, LATE_S)
    return take(asked, Topic.STEP, value)[0]


@pytest.mark.parametrize(
    ("workers", "value"),
    [
        ([], NOBODY),
        ([Seen(looks=False)], NOBODY),
        ([Seen(looks=True)], NO_STEP),
        ([Seen(looks=True, step=0)], 1),
        ([Seen(looks=True, step=7, waits=True)], 7),
        ([Seen(looks=True, step=7, waits=True), Seen(looks=True, step=7)], 8),
        ([Seen(looks=True, step=7, waits=True), Seen(looks=True, step=5)], 7),
        ([Seen(looks=True, step=9, ready=True), Seen(looks=True, step=5)], 6),
        ([Seen(looks=False, step=None), Seen(looks=True, step=2)], 3),
    ],
)
def test_node_states_the_first_step_that_none_of_its_workers_has_begun(workers, value):
    _, actions = look(hold(), dict(enumerate(workers)), LATE_S)
    assert actions == (State(topic=Topic.STEP, value=value),)


def test_steps_are_read_when_what_was_being_written_is_there():
    workers = {0: Seen(looks=True, step=1)}
    waiting, actions = look(hold(), workers, SETTLE_S / 2)
    assert (waiting, actions) == (hold(), ())
    assert look(waiting, workers, SETTLE_S)[1] == (State(topic=Topic.STEP, value=2),)


def test_where_nobody_looks_anywhere_nothing_is_held():
    asked, _ = look(hold(), {}, 0.0)
    released, actions = take(asked, Topic.STEP, NOBODY)
    assert (released.released, actions) == (True, (Release(),))


@pytest.mark.parametrize(("value", "step"), [(NO_STEP, 0), (0, 0), (12, 12)])
def test_workers_get_the_step_that_is_agreed(value, step):
    asked, _ = look(hold(), {0: Seen(looks=True)}, LATE_S)
    assert take(asked, Topic.STEP, value)[1] == (Tell(step=step),)


def test_node_says_that_it_has_saved_once_and_the_stop_goes_on_when_all_have():
    state = agreed(5)
    assert look(state, {0: Seen(looks=True, step=5)}, 1.0) == (state, ())
    saved, actions = look(state, {0: Seen(looks=True, step=5, ready=True), 1: Seen(looks=False)}, 2.0)
    assert actions == (State(topic=Topic.SAVED, value=0),)
    assert look(saved, {}, 3.0) == (saved, ())
    over, actions = take(saved, Topic.SAVED, 0)
    assert (over.released, actions) == (True, (Release(),))
    assert look(over, {0: Seen(looks=True)}, 99.0) == (over, ())
    assert take(over, Topic.SAVED, 0) == (over, ())


def test_who_has_ended_is_not_waited_for():
    assert look(agreed(5), {}, 1.0)[1] == (State(topic=Topic.SAVED, value=0),)


def test_who_has_not_saved_in_time_is_named():
    workers = {
        0: Seen(looks=True, step=5, ready=True),
        3: Seen(looks=True, step=5),
        6: Seen(looks=True, step=2),
        7: Seen(looks=True),
        8: Seen(looks=False),
    }
    state = agreed(5)
    assert look(state, workers, 29.0)[1] == ()
    over, (released,) = look(state, workers, 30.0)
    assert over.released
    assert released.why == (
        "stopped without having saved within 30 s (--save-timeout): rank 3 (still saving), "
        "rank 6 (last asked about step 2), rank 7 (never asked should_stop)"
    )


def test_many_who_have_not_saved_are_counted():
    _, (released,) = look(agreed(5), {rank: Seen(looks=True, step=5) for rank in range(9)}, 30.0)
    assert released.why.endswith("rank 3 (still saving) and 5 more")


@pytest.mark.parametrize(("limit_s", "end_s"), [(30.0, AGREE_S), (2.0, 2.0 - MARGIN_S)])
def test_nodes_that_do_not_agree_in_time_let_the_stop_go_on_and_nobody_wait_for_a_step(limit_s, end_s):
    workers = {0: Seen(looks=True, step=4, waits=True)}
    asked, _ = look(hold(limit_s), workers, LATE_S)
    assert look(asked, workers, end_s - 0.01) == (asked, ())
    over, (told, released) = look(asked, workers, end_s)
    assert (over.released, told) == (True, Tell(step=None))
    assert released.why == f"the nodes have not agreed about a step within {end_s:.0f} s: workers are stopped unsaved"
    assert take(over, Topic.STEP, 5) == (over, ())


@pytest.mark.parametrize("topic", ["another hook's: step", Topic.STEP])
def test_what_is_agreed_about_something_else_or_a_second_time_is_nothing_to_it(topic):
    state = agreed(5)
    assert take(state, topic, 9) == (state, ())

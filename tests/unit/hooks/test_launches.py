"""What hooks may change about the start of workers, and with which powers."""

import pytest

from elastic_core.hooks.launches import RESERVED, RESERVED_PREFIXES, CheckedChanges, fault_of_variable
from elastic_core.moments import LaunchChange, Launches, merged_changes
from elastic_core.processes.spec import PLACE_VARIABLES


def checked(workers, nproc=2):
    made = CheckedChanges(Launches(workers=workers), nproc)
    return made.by_rank, made.faults


def test_what_is_allowed_stays():
    change = LaunchChange(
        environment={"A": "b"}, processors=frozenset({0, 3}), command=("nice", "-n1"), startup=("a.b:c",)
    )
    assert checked({1: change}) == ({1: change}, [])


def test_a_command_is_looked_for_where_the_worker_would(tmp_path):
    profiler = tmp_path / "acme-profile"
    profiler.write_text("#!/bin/sh\n")
    profiler.chmod(0o755)
    for change in (
        LaunchChange(command=(str(profiler),)),
        LaunchChange(command=["acme-profile", "--"], environment={"PATH": str(tmp_path)}),
    ):
        by_rank, faults = checked({0: change})
        assert (by_rank[0].command, faults) == (tuple(change.command), [])


def test_variables_for_all_are_for_each():
    made = CheckedChanges(Launches(environment={"A": "b", "RANK": "1"}), 2)
    assert made.by_rank == {rank: LaunchChange(environment={"A": "b"}) for rank in (0, 1)}
    assert len(made.faults) == 1


def test_a_worker_of_its_own_change_has_the_variables_for_all_too():
    change = LaunchChange(environment={"A": "own"}, command=("sh",))
    made = CheckedChanges(Launches(workers={1: change}, environment={"A": "b", "C": "d"}), 2)
    own = LaunchChange(environment={"A": "own", "C": "d"}, command=("sh",))
    assert made.by_rank == {0: LaunchChange(environment={"A": "b", "C": "d"}), 1: own}


@pytest.mark.parametrize(
    ("workers", "fault"),
    [
        ({2: LaunchChange()}, "may not change the worker 2: local ranks are 0 to 1"),
        ({"0": LaunchChange()}, "may not change the worker '0': local ranks"),
        ({0: {"A": "b"}}, "may not change the worker 0 by dict; expected LaunchChange"),
        ({0: LaunchChange(environment={"MASTER_PORT": "1"})}, "may not set 'MASTER_PORT': it is reserved"),
        ({0: LaunchChange(processors=frozenset())}, "may not bind the worker 0 to frozenset()"),
        ({0: LaunchChange(processors=frozenset({-1}))}, "may not bind the worker 0"),
        ({0: LaunchChange(command=("", "x"))}, "may not put ('', 'x') before the worker 0"),
        ({0: LaunchChange(command="numactl")}, "may not put 'numactl' before the worker 0"),
        ({0: LaunchChange(command=("a\0",))}, "may not put"),
        (
            {0: LaunchChange(command=("acme-nowhere", "--"))},
            "may not put ('acme-nowhere', '--') before the worker 0: there is no such program to run",
        ),
        ({0: LaunchChange(command=("/etc/passwd",))}, "may not put ('/etc/passwd',) before the worker 0: there is no"),
        ({0: LaunchChange(startup="acme:begin")}, "may not have 'acme:begin' called in the worker 0; expected names"),
        ({0: LaunchChange(startup=("acme.begin",))}, "may not have ('acme.begin',) called in the worker 0"),
        ({0: LaunchChange(startup=("acme:a,b:c",))}, "may not have"),
    ],
)
def test_what_is_not_allowed_is_left_out_with_a_line(workers, fault):
    by_rank, [line] = checked(workers)
    assert line.startswith(fault)
    assert all(change == LaunchChange() for change in by_rank.values())


def test_changes_of_several_hooks_add_up():
    first = LaunchChange(
        environment={"A": "1", "B": "1"}, processors=frozenset({1}), command=("nice",), startup=("a:b",)
    )
    second = LaunchChange(environment={"A": "2"}, command=("nsys", "profile"), startup=("c:d",))
    assert merged_changes((first, second)) == LaunchChange(
        environment={"A": "2", "B": "1"},
        processors=frozenset({1}),
        command=("nice", "nsys", "profile"),
        startup=("a:b", "c:d"),
    )


def test_what_an_agent_sets_is_reserved_to_it():
    free = {name for name in PLACE_VARIABLES if name not in RESERVED and not name.startswith(RESERVED_PREFIXES)}
    assert free == set()
    assert fault_of_variable("TORCHELASTIC_TIMER_FILE", "pipe") == ""


def test_a_hook_may_set_variables_of_its_own_and_none_of_the_agents():
    answer = Launches(environment={"TRAINING_WARM_SOCKET": "/x", "ELASTIC_ROUND": "9"})
    changes = CheckedChanges(answer, 1)
    assert changes.by_rank[0].environment == {"TRAINING_WARM_SOCKET": "/x"}
    assert [fault.partition(":")[0] for fault in changes.faults] == ["may not set 'ELASTIC_ROUND'"]
    assert CheckedChanges(Launches(environment={"TRAINING_WARM_SOCKET": "\0"}), 1).faults

"""What two snapshots of each worker, and its stack, say together."""

from elastic_watch.collectives.evidence import GroupState, Snapshot
from elastic_watch.hangs.collecting import Collected, calls_of
from elastic_watch.stacks import WorkerStack


def snapshot(enqueued):
    return Snapshot(taken_ns=0, groups=(GroupState(group="0", members=(0, 1), enqueued=enqueued),))


def test_ranks_whose_groups_change_make_progress():
    before = {0: snapshot(4), 1: snapshot(4)}
    found = Collected(begun_s=0.0, before=before, after={0: snapshot(5), 1: snapshot(4)})
    assert found.unstable == {0}


def test_rank_without_a_second_snapshot_may_make_progress_as_others_do():
    before = {0: snapshot(4), 1: snapshot(4)}
    assert Collected(begun_s=0.0, before=before, after={0: snapshot(5)}).unstable == {0, 1}
    assert Collected(begun_s=0.0, before=before, after={0: snapshot(4)}).unstable == set()


def test_the_main_thread_waits_in_the_call_of_the_thread_that_it_joins():
    frames = (("/u/train.py", 12, "<module>", ""), ("/usr/lib/python3.11/threading.py", 1112, "join", ""))
    text = """Thread 0x00007f0000000001 (most recent call first):
  File "/v/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/u/train.py", line 5 in reduce

Thread 0x00007f0000000002 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 1112 in join
  File "/u/train.py", line 12 in <module>
"""
    stack = WorkerStack(text=text, source="faulthandler", frames=frames, user_frame=0)
    assert calls_of({0: stack, 1: WorkerStack()}) == {0: "all_reduce"}

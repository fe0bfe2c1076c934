import itertools
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.failure.classify import (
    COLLATERAL_WINDOW_NS,
    classify,
    judge,
    one_line,
    rank_causes,
    shortened,
    signal_name,
)
from elastic_core.types import ErrorRecord, FailureClass, Origin, WorkerExit

AT_NS = 1_700_000_000_000_000_000
MS = 1_000_000


def ended(code=1, rank=0, at_ns=AT_NS, **fields):
    return WorkerExit(
        local_rank=rank, global_rank=rank, pid=100 + rank, code=code, at_s=1.0, at_ns=at_ns, runtime_s=9.0, **fields
    )


def error(kind="ValueError", message="boom", at_ns=AT_NS, source="hook", **fields):
    return ErrorRecord(source=source, type=kind, message=message, timestamp_ns=at_ns, **fields)


@pytest.mark.parametrize(
    ("exit", "record", "kind", "summary"),
    [
        (ended(), error(), FailureClass.USER_EXCEPTION, "ValueError: boom"),
        (ended(), error(message=""), FailureClass.USER_EXCEPTION, "ValueError"),
        (ended(), error(message="\n first\nsecond"), FailureClass.USER_EXCEPTION, "ValueError: first"),
        (ended(7), None, FailureClass.EXIT, "exit code 7"),
        (ended(7), error(kind="", message="bye", source="stderr"), FailureClass.EXIT, "exit code 7"),
        (ended(-9), None, FailureClass.SIGNAL, "killed by SIGKILL (9)"),
        (ended(-9, oom_kills=1), None, FailureClass.OOM_HOST, None),
        (ended(137, oom_kills=1), None, FailureClass.OOM_HOST, None),
        (ended(-11, oom_kills=1), None, FailureClass.SIGNAL, "killed by SIGSEGV (11)"),
        (ended(-9, unreapable=True), None, FailureClass.SIGNAL, None),
        (
            ended(-11),
            error(kind="Fatal Python error", message="Segmentation fault", source="faulthandler"),
            FailureClass.SIGNAL,
            "killed by SIGSEGV (11)",
        ),
        (
            ended(139),
            error(kind="Fatal Python error", message="Segmentation fault", source="faulthandler"),
            FailureClass.SIGNAL,
            "exit code 139: Segmentation fault",
        ),
        (ended(), error(kind="KeyboardInterrupt", message=""), FailureClass.SIGNAL, "KeyboardInterrupt"),
        (
            ended(),
            error(kind="torch.OutOfMemoryError", message="CUDA out of memory. Tried to allocate 20.00 GiB"),
            FailureClass.OOM_DEVICE,
            None,
        ),
        (ended(), error(kind="RuntimeError", message="CUDA error: out of memory"), FailureClass.OOM_DEVICE, None),
        (ended(), error(kind="RuntimeError", message="HIP out of memory. Tried"), FailureClass.OOM_DEVICE, None),
        (ended(), error(kind="RuntimeError", message="CUDA error: uncorrectable ECC error"), FailureClass.DEVICE, None),
        (ended(-6), error(kind="c10::Error", message="CUDA error: device-side assert"), FailureClass.DEVICE, None),
        (
            ended(),
            error(message="training failed", causes=(("from", "RuntimeError", "NCCL error in: x.cpp:3", "a.py:1"),)),
            FailureClass.DEVICE,
            "ValueError: training failed, from RuntimeError: NCCL error in: x.cpp:3",
        ),
        (
            ended(3),
            error("SystemExit", "", causes=(("while handling", "RuntimeError", "CUDA out of memory", ""),)),
            FailureClass.OOM_DEVICE,
            "exit code 3, while handling RuntimeError: CUDA out of memory",
        ),
        (ended(), error(kind="SystemExit", message="no data"), FailureClass.EXIT, "exit code 1: no data"),
        (
            ended(2),
            error(kind="SystemExit", message="a.py: error: --lr", top_level_import=True),
            FailureClass.USAGE,
            "exit code 2: a.py: error: --lr",
        ),
        (ended(), error(kind="MemoryError", message=""), FailureClass.OOM_HOST, "MemoryError"),
        (
            ended(),
            error(kind="RuntimeError", message="[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
            FailureClass.OOM_HOST,
            None,
        ),
        (
            ended(oom_kills=1),
            error(kind="RuntimeError", message="DataLoader worker (pid 5) is killed by signal: Killed. "),
            FailureClass.OOM_HOST,
            None,
        ),
        (
            ended(),
            error(kind="RuntimeError", message="DataLoader worker (pid 5) is killed by signal: Killed. "),
            FailureClass.USER_EXCEPTION,
            None,
        ),
        (
            ended(),
            error(kind="ModuleNotFoundError", message="No module named 'x'", top_level_import=True),
            FailureClass.USAGE,
            "ModuleNotFoundError: No module named 'x'",
        ),
        (ended(), error(kind="ImportError"), FailureClass.USER_EXCEPTION, "ImportError: boom"),
    ],
)
def test_kind_and_summary_of_a_workers_own_failure(exit, record, kind, summary):
    origin, found, text = classify(exit, record)
    assert (origin, found) == (Origin.INTRINSIC, kind)
    assert "\n" not in text
    if summary is not None:
        assert text == summary


def test_a_missing_script_is_a_usage_error():
    assert classify(ended(2), None, script_missing=True)[1:] == (FailureClass.USAGE, "exit code 2")
    assert classify(ended(2), None)[1] is FailureClass.EXIT


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("ConnectionResetError", "[Errno 104] Connection reset by peer"),
        ("ConnectionResetError", ""),
        ("BrokenPipeError", "[Errno 32] Broken pipe"),
        ("RuntimeError", "connection reset"),
        ("RuntimeError", "[/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:19628: Connection reset by peer."),
        ("RuntimeError", "[../gloo/transport/tcp/pair.cc:598] Connection closed by peer [172.28.0.12]:14004"),
        ("RuntimeError", "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 5000ms for recv operation"),
        ("RuntimeError", "Gloo connectFullMesh failed with [../pair.cc:144] no error"),
        ("RuntimeError", "Rank 1 failed to pass monitoredBarrier in 3000 ms"),
        (
            "torch.distributed.DistBackendError",
            (
                "NCCL error in: ProcessGroupNCCL.cpp:3763, remote process exited or there was a network error, NCCL "
                "version 2.28.8\nncclRemoteError: A call failed possibly due to a network error"
            ),
        ),
        ("torch.distributed.DistBackendError", "NCCL communicator was aborted on rank 3."),
        ("c10::DistBackendError", "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)"),
        ("RuntimeError", "Watchdog caught collective operation timeout: NCCL operation timed out"),
        ("RuntimeError", "NCCL communicator was aborted after a previous error"),
        ("RuntimeError", "nccl hit async error on rank 2: remote process exited or there was a network error"),
        ("c10d::nccl2::NCCLException", "NCCL Async Error: internal error - please report this issue to NCCL"),
        ("torch.distributed.DistNetworkError", "Failed to recv, got 0 bytes. Connection was likely closed. Did the"),
        ("torch.distributed.DistNetworkError", "The client socket has timed out after 60000ms while trying to"),
        ("torch.distributed.DistStoreError", "wait timeout after 300000ms, keys: /default_pg/0//cuda//0"),
        ("torch.distributed.DistStoreError", "Timed out after 301 seconds waiting for clients. 1/2 clients joined."),
        ("RuntimeError", "Socket Timeout"),
    ],
)
def test_what_only_tells_of_a_lost_peer_is_collateral(kind, message):
    assert classify(ended(), error(kind, message))[0] is Origin.COLLATERAL


def test_a_script_that_leaves_as_its_peer_is_gone_is_collateral():
    gone = error("SystemExit", "", causes=(("while handling", "ConnectionResetError", "reset by peer", ""),))
    assert classify(ended(), gone)[:2] == (Origin.COLLATERAL, FailureClass.EXIT)


def test_a_peer_that_is_gone_is_no_fault_of_this_device_whoever_says_so():
    gone = error("torch.distributed.DistBackendError", "NCCL error: remote process exited or there was a network error")
    assert classify(ended(), gone)[:2] == (Origin.COLLATERAL, FailureClass.USER_EXCEPTION)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("ValueError", "boom"),
        (
            "torch.distributed.DistNetworkError",
            (
                "The server socket has failed to listen on any local network address. port: 29500, code: -98, "
                "name: EADDRINUSE, message: address already in use"
            ),
        ),
        ("torch.distributed.DistBackendError", "NCCL error in: x.cpp:1331, unhandled cuda error"),
        ("c10d::nccl2::NCCLException", "NCCL Async Error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"),
        ("", "sendBytes failed on SocketImpl(fd=67): Broken pipe"),
    ],
)
def test_what_is_a_ranks_own_is_not_collateral(kind, message):
    assert classify(ended(), error(kind, message))[0] is Origin.INTRINSIC


@pytest.mark.parametrize(
    ("code", "record", "origin"),
    [
        (-15, None, Origin.STOPPED),
        (-9, None, Origin.STOPPED),
        (0, None, Origin.STOPPED),
        (1, None, Origin.STOPPED),
        (1, error(at_ns=AT_NS - 1), Origin.STOPPED),
        (1, error(at_ns=AT_NS - 10 * MS), Origin.INTRINSIC),
        (1, error(at_ns=AT_NS - 11 * MS), Origin.INTRINSIC),
        (-15, error(at_ns=AT_NS - 11 * MS), Origin.INTRINSIC),
        (1, error("ConnectionResetError", "", at_ns=AT_NS - 11 * MS), Origin.COLLATERAL),
        (1, error("ConnectionResetError", "", at_ns=AT_NS - 9 * MS), Origin.STOPPED),
    ],
)
def test_a_worker_that_we_signalled_has_failed_only_if_it_said_so_before(code, record, origin):
    exit = ended(code, stop_signal=signal.SIGTERM, stop_sent_ns=AT_NS - 10 * MS)
    assert classify(exit, record)[0] is origin


def test_the_summary_of_a_stopped_worker_names_our_signal_and_its_end():
    stopped = {"stop_signal": signal.SIGTERM, "stop_sent_ns": AT_NS - MS}
    assert classify(ended(-15, **stopped), None)[2] == "stopped by the launcher with SIGTERM (15)"
    assert classify(ended(-9, **stopped), None)[2].endswith("SIGTERM (15): killed by SIGKILL (9)")


def test_the_error_files_time_counts_before_the_kernels():
    assert judge(ended(), error(at_ns=AT_NS - 5)).at_ns == AT_NS - 5
    assert judge(ended(), None).at_ns == AT_NS


def ranks(workers):
    return [worker.exit.global_rank for worker in rank_causes(workers)]


def test_an_intrinsic_failure_goes_before_a_collateral_one_within_the_window():
    cause = judge(ended(-9, rank=2, at_ns=AT_NS + 99 * MS), None)
    consequence = judge(ended(rank=0), error("ConnectionResetError", "", at_ns=AT_NS))
    assert ranks([consequence, cause]) == [2, 0]


def test_an_intrinsic_failure_after_the_window_is_a_later_one():
    later = judge(ended(rank=2), error(at_ns=AT_NS + 101 * MS))
    first = judge(ended(rank=0), error("ConnectionResetError", "", at_ns=AT_NS))
    assert ranks([later, first]) == [0, 2]


@pytest.mark.parametrize(
    ("code", "record", "later_ms", "order"),
    [
        (7, None, 900, [1, 0]),
        (-6, error("Fatal Python error", "Aborted", source="faulthandler", at_ns=AT_NS + 900 * MS), 900, [1, 0]),
        (7, None, 1_100, [0, 1]),
        (1, error(at_ns=AT_NS + 200 * MS), 900, [0, 1]),
        (0, None, 900, [0, 1]),
    ],
    ids=["exit code", "fault", "much later", "it said when", "stopped by us"],
)
def test_who_is_slow_to_end_goes_before_those_who_lost_it(code, record, later_ms, order):
    """Its connections are closed when it begins to end; what it ends with is known only then."""
    lost = judge(ended(rank=0, at_ns=AT_NS + 5 * MS), error("ConnectionResetError", "", at_ns=AT_NS))
    stopped = {"stop_signal": 15, "stop_sent_ns": AT_NS} if code == 0 else {}
    cause = judge(ended(code, rank=1, at_ns=AT_NS + later_ms * MS, **stopped), record)
    assert ranks([lost, cause]) == order


def test_nanoseconds_decide_between_intrinsic_failures_whatever_order_they_are_given_in():
    workers = [judge(ended(rank=rank), error(at_ns=AT_NS + offset)) for rank, offset in ((0, 3), (1, 2), (2, 1))]
    for order in itertools.permutations(workers):
        assert ranks(order) == [2, 1, 0]


def test_stopped_workers_come_last_by_rank_however_early_they_ended():
    stopped = [judge(ended(-15, rank=rank, at_ns=1, stop_signal=15, stop_sent_ns=0), None) for rank in (3, 1)]
    assert ranks([*stopped, judge(ended(rank=9), error())]) == [9, 1, 3]


@given(
    st.lists(st.tuples(st.integers(0, 300 * MS), st.sampled_from(["own", "peer", "stopped"])), min_size=1, max_size=12)
)
def test_ranking_keeps_everyone_and_no_cause_hides_behind_its_consequence(drawn):
    workers = []
    for rank, (offset, story) in enumerate(drawn):
        at_ns = AT_NS + offset
        if story == "stopped":
            workers.append(judge(ended(-15, rank=rank, stop_signal=15, stop_sent_ns=at_ns), None))
        else:
            kind = "ValueError" if story == "own" else "ConnectionResetError"
            workers.append(judge(ended(rank=rank, at_ns=AT_NS + 10**9), error(kind, "", at_ns=at_ns)))
    ordered = rank_causes(workers)
    assert sorted(worker.exit.global_rank for worker in ordered) == list(range(len(workers)))
    for before, after in itertools.combinations(ordered, 2):
        if before.origin is Origin.STOPPED:
            assert after.origin is Origin.STOPPED
        elif after.origin is Origin.INTRINSIC and before.origin is Origin.COLLATERAL:
            assert after.at_ns > before.at_ns + COLLATERAL_WINDOW_NS - 1
        elif after.origin is before.origin:
            assert before.at_ns <= after.at_ns


def test_one_line_is_bounded():
    assert one_line("x" * 1000, 10) == "xxxxxx…xxx"
    assert one_line("") == ""


@given(st.text("ab 17", max_size=60), st.integers(8, 40))
def test_a_shortened_text_has_its_ends_and_one_gap_at_most(text, limit):
    told = shortened(text, limit)
    assert len(told) <= limit
    head, _, tail = told.partition("…")
    assert text.startswith(head)
    assert text.endswith(tail)
    assert (told == text) == (len(text) <= limit)


def test_unknown_signals_have_their_number():
    assert signal_name(9) == "SIGKILL (9)"
    assert signal_name(99) == "signal 99"

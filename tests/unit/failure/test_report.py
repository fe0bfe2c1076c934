import itertools
import re

import pytest
from msgspec.structs import replace

from elastic_core.encoding import rank_ranges
from elastic_core.failure.classify import judge
from elastic_core.failure.incident import (
    IncidentAbsence,
    build_incident,
    to_failure,
)
from elastic_core.failure.report import (
    MAX_LINES,
    encodable,
    render_attempt,
    render_elsewhere,
    render_incident,
)
from elastic_core.types import ErrorRecord, Failure, FailureClass, Restart, Stop, WorkerExit

AT_NS = 1_700_000_000_123_456_789
MS = 1_000_000
USER = tuple(("/home/u/train.py", 10 + number, f"f{number}", f"f{number + 1}()") for number in range(20))
LIBRARY = tuple(
    ("/v/lib/python3.11/site-packages/torch/nn/modules/module.py", 1700 + number, "_call_impl", "return forward()")
    for number in range(9)
)


def exit_of(rank, code=1, **fields):
    fields = {"at_ns": AT_NS + 20 * MS} | fields
    return WorkerExit(
        local_rank=rank % 8, global_rank=rank, pid=1000 + rank, code=code, at_s=1.0, runtime_s=9.0, **fields
    )


def failed(rank=2, kind="ValueError", message="boom", frames=USER[:1], at_ns=AT_NS, code=1, **fields):
    error = ErrorRecord(source="hook", type=kind, message=message, timestamp_ns=at_ns, frames=frames)
    logs = (f"/run/attempt_0/{rank}/stdout.log", f"/run/attempt_0/{rank}/stderr.log")
    return judge(exit_of(rank, code, **fields), error, log_paths=logs)


def stopped(rank):
    return judge(exit_of(rank, -15, stop_signal=15, stop_sent_ns=AT_NS + 10 * MS), None)


def incident(workers, **changes):
    fields = {"run_id": "bert-7", "node_id": "n0", "host": "gpu-12", "round_index": 3, "restart_count": 2}
    return build_incident(
        None, workers=workers, **(fields | {"decision": Stop(reason="2 of 2 restarts used")} | changes)
    )


LEFT_OUT = (
    IncidentAbsence(
        node_id="b", by="hook 'gate' (acme 1.0)", reason="ECC", refused=True, until_ns=1_700_000_000_000_000_000
    ),
    IncidentAbsence(node_id="c", by="policy 'rules'", reason="exit code 7", refused=False),
)


def block(workers, *, width=100, encoding="utf-8", absent=(), reported=None, **changes):
    text = render_incident(
        replace(incident(workers, **changes), absent=absent, **(reported or {})),
        width=width,
        encoding=encoding,
        incident_path="/run/incident.json",
    )
    lines = text.split("\n")
    assert len(lines) <= MAX_LINES
    # Paths are there to be copied, and "..." for an ellipsis makes a cut line longer by two.
    assert all(
        len(line) <= width + 2 * line.count("...") for line in lines if "/run/" not in line and ".py:" not in line
    )
    return text


def test_the_block_of_the_four_rank_case():
    reset = [failed(rank, "RuntimeError", "connection reset", at_ns=AT_NS + 60 * MS) for rank in (0, 1)]
    text = block([*reset, stopped(3), failed()])
    assert text.split("\n") == [
        "── run 'bert-7' failed: rank 2 " + "─" * 69,
        "rank 2 (local rank 2) on n0 (gpu-12), pid 1002, exit code 1",
        "source=worker  round 3, restarts 2  2023-11-14T22:13:20.123456789Z",
        "user exception: ValueError: boom",
        "Traceback, innermost last:",
        "  /home/u/train.py:10 in f0",
        "    f1()",
        "1 other stopped because of it, 2 others failed after it",
        "  secondary failures: ranks 0, 1: RuntimeError: connection reset",
        "  stopped by the launcher: rank 3",
        "Logs: /run/attempt_0/2/stdout.log",
        "      /run/attempt_0/2/stderr.log",
        "Decision: stop (2 of 2 restarts used)",
        "Incident: /run/incident.json",
        "─" * 100,
    ]


def test_sixty_four_ranks_with_everything_long_stay_within_the_limit():
    kinds = ["KeyError", "TypeError", "OSError", "IndexError", "AttributeError"]
    others = [failed(10 + n, kind, "m" * 900, at_ns=AT_NS + n + 1) for n, kind in enumerate(kinds)]
    first = failed(message="\n".join(["w" * 400] * 40), frames=USER + LIBRARY)
    text = block([first, *others, *(stopped(rank) for rank in range(20, 62, 2))], finished_count=3)
    assert "rank 2 (local rank 2)" in text
    assert "3 other kinds of failure" in text
    assert "stopped by the launcher: ranks 20, 22, 24" in text
    assert "21 others stopped because of it, 5 others failed after it" in text
    assert "3 workers had finished before" in text
    assert "more lines" in text


def test_numbers_that_differ_between_ranks_make_no_new_kind_of_failure():
    reset = [
        failed(rank, "RuntimeError", f"Read error [127.0.0.1]:{rank}999: Connection reset by peer", at_ns=AT_NS + rank)
        for rank in range(3, 40)
    ]
    text = block([failed(), *reset])
    assert text.count("secondary failures") == 1
    assert "secondary failures: ranks 3-39: RuntimeError: Read error" in text


def test_a_long_traceback_keeps_the_users_innermost_line_where_it_was_raised_and_where_it_began():
    text = block([failed(frames=USER + LIBRARY)])
    lines = text.split("\n")
    begin = lines.index("Traceback, innermost last:")
    assert lines[begin + 1 : begin + 11] == [
        "  /home/u/train.py:10 in f0",
        "    f1()",
        "  … 17 frames",
        "  /home/u/train.py:28 in f18",
        "    f19()",
        "  /home/u/train.py:29 in f19",
        "    f20()",
        "  … 8 frames",
        "  torch/nn/modules/module.py:1708 in _call_impl",
        "    return forward()",
    ]


def test_a_death_by_sigkill_without_an_error_file():
    text = block([judge(exit_of(5, -9), None)])
    assert "rank 5 (local rank 5) on n0 (gpu-12), pid 1005, signal 9" in text
    assert "signal: killed by SIGKILL (9)" in text
    assert "Traceback" not in text
    assert "others" not in text


def test_an_out_of_memory_kill_is_named():
    text = block([judge(exit_of(5, -9, oom_kills=1), None)])
    assert "out of memory on host: killed by SIGKILL (9): out of memory" in text


def test_the_end_of_stderr_stands_in_for_a_missing_error():
    text = block([failed(kind="", message="a\nb\nc\nd\ne", frames=(), code=7)])
    assert "non-zero exit: exit code 7\nthe end of its stderr:\n  c\n  d\n  e\n" in text


def test_a_failure_of_the_launcher_says_so():
    failure = Failure(
        failure_class=FailureClass.RENDEZVOUS,
        summary="2 of at least 4 nodes joined within 600 s",
        node_id="n0",
        round_index=0,
        at_s=1,
        uptime_s=0,
        exit_code=4,
    )
    text = render_incident(build_incident(failure, run_id="bert-7", host="gpu-12", at_ns=AT_NS, workers=[stopped(1)]))
    assert "run 'bert-7' failed: rendezvous" in text
    assert "host n0 (gpu-12)  source=launcher" in text
    assert "rendezvous: 2 of at least 4 nodes joined within 600 s" in text
    assert "stopped by the launcher: rank 1" in text
    early = build_incident(
        replace(failure, node_id=""), run_id="bert-7", host="gpu-12", at_ns=AT_NS, workers=[stopped(1)]
    )
    assert "host gpu-12  source=launcher" in render_incident(early)


@pytest.mark.parametrize("width", [1, 40, 72, 250])
def test_every_width_is_kept(width):
    workers = [failed(message="é" * 500, frames=USER + LIBRARY), *(stopped(rank) for rank in range(10, 60, 3))]
    block(workers, width=max(width, 40))
    assert render_incident(incident(workers), width=width)


def test_a_worker_cannot_steer_the_terminal():
    text = block([failed(kind="ValueError", message="\x1b[2Jgone\r\x07\n\x9b31mred")])
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert "\r" not in text
    assert "?[2Jgone" in text


def test_a_stream_that_cannot_show_it_gets_plain_characters():
    workers = [failed(message="naïve 🏖", frames=USER + LIBRARY)]
    text = block(workers, encoding="ascii")
    assert text.isascii()
    assert "-- run 'bert-7' failed" in text
    assert "... 17 frames" in text
    assert r"na\xefve \U0001f3d6" in text
    assert encodable("naïve", "latin-1") == "naïve"
    assert encodable("─", "no-such-encoding") == "-"
    assert "naïve" in block(workers)


def test_a_restarted_failure_takes_one_line():
    found = incident([failed()], decision=Restart(rule="intensity"))
    line = render_attempt(found, restart=1, max_restarts=3)
    assert line == "rank 2 failed: ValueError: boom (train.py:10); restart 1 of 3 now"


def test_a_restarted_failure_says_when_without_whom_and_who_else_failed():
    message = f"{'m' * 150} port 29500 {'m' * 150}"
    workers = [failed(message=message), failed(3, at_ns=AT_NS + 1)]
    found = incident(workers, decision=Restart(delay_s=0.5, exclude_nodes=("n3",)))
    told = render_attempt(found, restart=2, max_restarts=None)
    (summary,) = re.findall("failed: (.*) \\(train.py", told)
    assert len(summary) == 200
    assert summary.startswith("ValueError: mmm")
    assert summary.endswith("mmm")
    assert "29500" in summary
    assert told == f"rank 2 failed: {summary} (train.py:10); 1 other failed after it; restart 2 in 0.5 s without n3"


def test_a_message_is_whole_where_that_is_possible_and_its_class_without_its_module():
    message = (
        "The checkpoint being loaded used a DP world size of 2 but the current world size is 1. "
        "Automatic adjustment of ZeRO's optimizer state partitioning with a new world size is not currently supported."
    )
    workers = [failed(kind="deepspeed.runtime.zero.utils.ZeRORuntimeException", message=message)]
    lines = block(workers).split("\n")
    first = next(n for n, line in enumerate(lines) if line.startswith("user exception: ZeRORuntimeException: The"))
    assert " ".join(line.strip() for line in lines[first : first + 3]) == (
        f"user exception: ZeRORuntimeException: {message}"
    )
    line = render_attempt(incident(workers, decision=Restart()), restart=1, max_restarts=3)
    assert "used a DP world size of 2 but the current world size is 1. Automatic" in line
    port = "The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98"
    workers = [failed(kind="torch.distributed.DistNetworkError", message=port)]
    assert f"rank 2 failed: DistNetworkError: {port} (train.py:10)" in render_attempt(
        incident(workers, decision=Restart()), restart=1, max_restarts=3
    )
    assert "port: 29500," in block(workers)


def test_a_message_that_is_too_long_for_three_lines_keeps_its_ends_and_its_numbers():
    message = f"{'begin ' * 20}at 10.0.0.7:29500 {'middle ' * 30}{'end ' * 20}over"
    lines = block([failed(message=message)]).split("\n")
    at = next(n for n, line in enumerate(lines) if line.startswith("user exception: ValueError: begin"))
    told = " ".join(line.strip() for line in lines[at : at + 3])
    assert "10.0.0.7:29500" in told
    assert told.count("…") == 1
    assert told.endswith("end over")
    assert lines[at + 3].startswith("Traceback")


def test_ranges():
    assert rank_ranges([]) == ""
    assert rank_ranges([3, 1, 0]) == "0, 1, 3"
    assert rank_ranges([4, 5, 6, 9, 0, 1]) == "0, 1, 4-6, 9"


def test_any_mixture_of_sizes_stays_within_the_limit():
    sizes = itertools.product((0, 1, 30), (0, 1, 30), (0, 1, 40), (0, 1, 50))
    for frame_count, message_lines, secondary_count, stopped_count in sizes:
        first = failed(message="\n".join("line" for _ in range(message_lines)), frames=(USER + LIBRARY)[:frame_count])
        others = [failed(100 + n, f"Error{'abcdefghij'[n % 10]}", at_ns=AT_NS + 1) for n in range(secondary_count)]
        workers = [first, *others, *(stopped(200 + n) for n in range(stopped_count))]
        block(workers, finished_count=1, absent=LEFT_OUT)


def start_up_failure(summary):
    failure = Failure(
        failure_class=FailureClass.START_UP, summary=summary, node_id="n0", round_index=0, at_s=1.0, uptime_s=0.0
    )
    return build_incident(failure, run_id="bert-7", host="gpu-12", at_ns=AT_NS, decision=Stop(reason="no"), workers=[])


def test_the_launchers_own_failure_is_told_to_its_end_with_the_advice():
    summary = (
        "worker with local rank 3: can't start '/opt/conda/envs/training/bin/python3': EMFILE: Too many open files. "
        "Try: raise the limit on open files (ulimit -n)"
    )
    lines = render_incident(start_up_failure(summary), width=60).split("\n")
    assert all(len(line) <= 60 for line in lines)
    first = next(n for n, line in enumerate(lines) if line.startswith("start-up: "))
    end = next(n for n, line in enumerate(lines) if line.startswith("Decision: "))
    assert " ".join(line.strip() for line in lines[first:end]) == f"start-up: {summary}"


def test_a_word_longer_than_the_lines_is_broken_and_lacks_its_middle():
    lines = [line for line in render_incident(start_up_failure("x" * 500), width=60).split("\n") if "xxxx" in line]
    assert len(lines) == 4  # and `start-up:` above them
    assert sum("…" in line for line in lines) == 1
    assert all(len(line) <= 60 for line in lines)


def elsewhere(**changes):
    failure = Failure(
        failure_class=FailureClass.USER_EXCEPTION, summary="ValueError: boom", node_id="gpu-7/10.0.0.7", round_index=3,
        at_s=1.0, uptime_s=1.0, global_rank=12, local_rank=4,
    )  # fmt: skip
    built = build_incident(
        failure, run_id="bert-7", host="gpu-7/10.0.0.7", at_ns=AT_NS, workers=[stopped(2)], restart_count=2, **changes
    )
    return replace(built, source="worker", elsewhere_rank=12)


def test_a_failure_on_another_node_names_rank_and_node():
    lines = render_incident(elsewhere(decision=Stop(reason="2 of 2 restarts used"))).split("\n")
    assert lines[0] == "── run 'bert-7' failed: rank 12 " + "─" * 68
    assert lines[1].startswith("rank 12 on gpu-7/10.0.0.7, another node  source=worker  round 3, restarts 2")
    assert lines[2] == "user exception: ValueError: boom"


def test_a_restart_after_a_failure_on_another_node_is_one_line():
    text = render_attempt(elsewhere(decision=Restart()), restart=1, max_restarts=3)
    assert text.startswith("rank 12 failed: ValueError: boom (on gpu-7/10.0.0.7); ")
    assert text.endswith("restart 1 of 3 now")


def test_another_nodes_failure_is_one_line_that_names_it_and_says_whose_a_path_is():
    found = replace(incident([failed(), stopped(3)]), report_count=2, node_count=2)
    line = render_elsewhere(found, incident_path="/run/incident.json", host="gpu-7")
    assert line == (
        "run 'bert-7' failed: rank 2 on n0 (gpu-12): ValueError: boom (train.py:10); stop (2 of 2 restarts used); "
        "the report is that node's; incident on gpu-7: /run/incident.json"
    )
    assert "Incident on gpu-7: /run/incident.json" in render_incident(
        found, incident_path="/run/incident.json", host="gpu-7"
    )
    again = replace(found, decision=Restart())
    assert render_attempt(again, restart=1, max_restarts=3, elsewhere=True) == (
        "rank 2 failed on n0 (gpu-12): ValueError: boom (train.py:10); restart 1 of 3 now"
    )


def test_a_restart_for_what_no_worker_has_caused_on_another_node_says_what_it_was():
    failure = Failure(
        failure_class=FailureClass.HEALTH_CHECK, summary="gpu 3 has an uncorrectable ECC error", node_id="n1",
        round_index=3, at_s=1.0, uptime_s=1.0,
    )  # fmt: skip
    found = build_incident(failure, run_id="bert-7", host="gpu-13", at_ns=AT_NS, decision=Restart())
    assert render_attempt(found, restart=1, max_restarts=3, elsewhere=True) == (
        "health check failed on n1 (gpu-13): gpu 3 has an uncorrectable ECC error; restart 1 of 3 now"
    )


# --- what led to an exception


def led(*causes, notes=(), kind="RuntimeError", message="configuration is incomplete", report_count=0):
    error = ErrorRecord(
        source="hook", type=kind, message=message, timestamp_ns=AT_NS, frames=USER[:1], causes=causes, notes=notes
    )
    return replace(incident([judge(exit_of(2), error)]), report_count=report_count)


RELAY = ("in DataLoader worker 3", "FileNotFoundError", "[Errno 2] No such file: '/data/1.jpg'", "data.py:12")
SUMMARIES = [
    (led(("from", "KeyError", "'lr'", "")), "RuntimeError: configuration is incomplete, from KeyError: 'lr'"),
    (
        led(("while handling", "a.b.NotThere", "", ""), message=""),
        "RuntimeError, while handling NotThere",
    ),
    (
        led(
            ("member", "ValueError", "shard 3 is empty", "a.py:1"), ("member", "OSError", "[Errno 5] I/O", ""),
            kind="ExceptionGroup", message="two loaders failed (2 sub-exceptions)",
        ),
        "ExceptionGroup: two loaders failed (2 sub-exceptions): ValueError: shard 3 is empty; OSError: [Errno 5] I/O",
    ),
    (led(notes=("while reading shard 17",)), "RuntimeError: configuration is incomplete; while reading shard 17"),
    (
        led(RELAY, kind="FileNotFoundError", message="Caught FileNotFoundError in DataLoader worker process 3.\n…"),
        "FileNotFoundError: [Errno 2] No such file: '/data/1.jpg'",
    ),
    (
        led(RELAY, ("from", "KeyError", "'x'", "data.py:3"), kind="torch.X", message="Caught …"),
        "X, from FileNotFoundError: [Errno 2] No such file: '/data/1.jpg', from KeyError: 'x'",
    ),
    (
        led(kind="pydantic.ValidationError", message="1 validation error for Config\nlr\n  Field required\n    For"),
        "ValidationError: 1 validation error for Config lr Field required",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("found", "summary"), SUMMARIES)
def test_the_restart_line_and_the_block_have_the_sentence_that_says_why(found, summary):
    assert found.summary == summary
    assert f"failed: {summary}" in render_attempt(found, restart=1, max_restarts=3)
    assert summary in re.sub(r"\n +", " ", render_incident(found, width=200))


def test_the_place_is_that_of_the_process_that_raised_it():
    (found,) = [found for found, summary in SUMMARIES if summary.startswith("FileNotFoundError")]
    line = render_attempt(found, restart=1, max_restarts=3)
    assert line.endswith("'/data/1.jpg' (data.py:12, in DataLoader worker 3); restart 1 of 3 now")
    over_nodes = render_attempt(replace(found, report_count=2), restart=1, max_restarts=3)
    assert "(data.py:12, in DataLoader worker 3 on n0)" in over_nodes
    assert (
        "rank 2 failed on n0 (gpu-12): FileNotFoundError: [Errno 2] No such file: '/data/1.jpg' (data.py:12, in "
        in (render_attempt(replace(found, report_count=2), restart=1, max_restarts=3, elsewhere=True))
    )


def test_a_long_message_leaves_room_for_its_cause_and_many_members_are_counted():
    long = led(("from", "KeyError", "'lr'", ""), message="m" * 900)
    assert long.summary.endswith(", from KeyError: 'lr'")
    assert len(long.summary) <= 200
    many = led(*[("member", "ValueError", f"{'x' * 60} {n}", f"a.py:{n}") for n in range(8)], kind="ExceptionGroup")
    assert many.summary.endswith("; 7 more") or "more" in many.summary
    lines = render_incident(many).split("\n")
    assert [line for line in lines if "more members" in line] == ["  … 5 more members"]
    assert len(lines) <= MAX_LINES


def test_of_a_message_of_many_lines_the_first_and_the_last_are_shown():
    text = render_incident(
        incident([failed(message="\n".join(["Could not override 'lrr'.", *map(str, range(9)), "Key 'lrr'"]))])
    )
    assert "Could not override" in text
    assert "  … 7 more lines\n  8\n  Key 'lrr'\n" in text


def fingerprint_of(found):
    return to_failure(found, at_s=0.0, uptime_s=1.0).fingerprint


def test_what_led_to_it_tells_failures_apart_and_the_number_of_the_process_does_not():
    def loader(number, file, kind="FileNotFoundError"):
        cause = (f"in DataLoader worker {number}", kind, f"[Errno 2] No such file: '/data/{file}'", "data.py:12")
        return led(cause, kind=kind, message=f"Caught {kind} in DataLoader worker process {number}.\nOriginal …")

    assert fingerprint_of(loader(3, "000123.jpg")) == fingerprint_of(loader(7, "000123.jpg"))
    assert fingerprint_of(loader(3, "000123.jpg")) != fingerprint_of(loader(3, "000124.jpg"))
    assert fingerprint_of(led(("from", "KeyError", "'lr'", ""))) != fingerprint_of(
        led(("from", "KeyError", "'wd'", ""))
    )
    assert fingerprint_of(led(notes=("shard a",))) != fingerprint_of(led(notes=("shard b",)))


def test_a_policy_sees_causes_and_notes_in_the_message():
    failure = to_failure(led(("from", "KeyError", "'lr'", ""), notes=("a note",)), at_s=0.0, uptime_s=1.0)
    assert failure.message == "configuration is incomplete\na note\nfrom KeyError: 'lr'"


def test_a_run_without_a_name_is_not_called_none():
    found = incident([failed()], run_id="none")
    assert render_incident(found).startswith("── run failed: rank 2 ─")
    assert render_incident(found, title="run at node0:29500").startswith("── run at node0:29500 failed: rank 2 ─")


def test_who_was_left_out_is_named_with_by_whom_why_and_until_when():
    (line,) = [
        line for line in block([failed()], width=140, absent=LEFT_OUT).splitlines() if line.startswith("Left out")
    ]
    assert line == (
        "Left out: b, c; b asked again by 2023-11-14T22:13:20.000000000Z, hook 'gate' (acme 1.0) refused: ECC"
    )
    (line,) = [line for line in block([failed()], absent=LEFT_OUT[1:]).splitlines() if line.startswith("Left out")]
    assert line == "Left out: c; c until its next decision, by policy 'rules': exit code 7"


def test_the_headline_of_a_restart_is_not_that_of_a_failed_run():
    workers = [failed()]
    headline = lambda found: render_incident(found).split("\n")[0].strip("─ ")  # noqa: E731
    assert headline(incident(workers)) == "run 'bert-7' failed: rank 2"
    again = incident(workers, decision=Restart())
    assert headline(again) == f"round {again.round_index} of run 'bert-7' failed: rank 2; restarted"
    assert headline(replace(again, round_index=-1)) == "run 'bert-7' failed: rank 2; restarted"


def test_the_block_names_the_hook_that_has_reported_it_and_at_most_four_lines_of_what_it_knows():
    fields = {"gpu": 3, "text": "x" * 300, **{f"counter{number}": number for number in range(5)}}
    workers = [failed(message="\n".join("line" for _ in range(30)), frames=USER + LIBRARY), *map(stopped, range(40))]
    lines = block(workers, reported={"reported_by": "gpu-gate", "fields": fields}, absent=LEFT_OUT).split("\n")
    assert sum(line.startswith("source=hook gpu-gate  round 3") for line in lines) == 1
    shown = lines[lines.index("  gpu: 3") : lines.index("Traceback, innermost last:")]
    assert [line.strip()[:10] for line in shown] == ["gpu: 3", "text: xxxx", "counter0: ", "… 4 more f", "line"]

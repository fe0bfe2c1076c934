"""Reports to draw: from one node for 20 seconds to a thousand nodes for a hundred rounds. Always the same data."""

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from elastic_core.api import ErrorRecord, FailedWorker, FailureClass, Origin, Restart, Stop, WorkerExit
from elastic_core.api.commands import Incident
from elastic_report.ledger.states import LedgerState as S
from elastic_report.model import (
    Account,
    Difference,
    IncidentRow,
    LaneSpan,
    LostTime,
    NodeLane,
    Ratio,
    Report,
    RoundRow,
    RunFacts,
    TimelineEvent,
    WorkerBar,
)
from elastic_report.page import render

BEGAN_NS = 1_795_660_496_250_000_000
"""2026-11-26, 02:34:56.25 UTC."""
OPTIONS = (
    ("--nproc-per-node", "8", "flag --nproc-per-node"),
    ("--max-restarts", "3", "env PET_MAX_RESTARTS"),
    ("--rdzv-backend", "redis", "flag --rdzv-backend"),
    ("--rdzv-endpoint", "redis://:****@head:6379", "flag --rdzv-endpoint"),
    ("--monitor-interval", "0.1", "default"),
    ("--restart-backoff", "0.5", "default"),
    ("--log-dir", "", "default"),
)
VERSIONS = {"python": "3.11.9", "kernel": "6.1.0-18-amd64", "torch": "2.13.0+cu128", "elastic-core": "0.9.0"}
TRACEBACK = """Traceback (most recent call last):
  File "/srv/bert/train.py", line 118, in <module>
    main()
  File "/srv/bert/train.py", line 97, in main
    loss = step(model, batch)
  File "/srv/bert/train.py", line 61, in step
    raise ValueError(f"loss is {loss}")
ValueError: loss is nan
"""


@dataclass
class Lane:
    """Builds the lane of one node: states follow each other."""

    node_id: str
    at_s: float = 0.0
    spans: list[LaneSpan] = field(default_factory=list)
    workers: list[WorkerBar] = field(default_factory=list)

    def add(self, state: S, seconds: float, round_: int | None = None, reason: str = "") -> "Lane":
        end = self.at_s + seconds
        self.spans.append(LaneSpan(state=state, begin_s=self.at_s, end_s=end, round=round_, reason=reason))
        self.at_s = end
        return self

    def done(self, outcome: str = "", **fields: object) -> NodeLane:
        states: dict[S, float] = defaultdict(float)
        for span in self.spans:
            states[span.state] += span.end_s - span.begin_s
        return NodeLane(
            node_id=self.node_id,
            outcome=outcome,
            begin_s=self.spans[0].begin_s,
            end_s=self.at_s,
            states=dict(states),
            spans=tuple(self.spans),
            workers=tuple(self.workers),
            **fields,  # type: ignore[arg-type]  # of the lane
        )


def account(nodes: Iterable[NodeLane], *, bound_s: float = 0.0, **fields: object) -> Account:
    """Return the account of the lanes, with both formulas."""
    states: dict[S, float] = defaultdict(float)
    for lane in nodes:
        for state, seconds in lane.states.items():
            states[state] += seconds
    present = sum(states.values())
    base = max(present - states.get(S.QUEUED, 0.0), 1e-9)
    productive = states.get(S.PRODUCTIVE, 0.0)
    google = Ratio(low=max(0.0, productive - bound_s) / base, high=productive / base)
    return Account(
        states=dict(states),
        present_s=present,
        redone_bound_s=bound_s,
        goodput=google,
        goodput_nvidia=Ratio(low=google.low + 0.01, high=google.high + 0.01),
        **fields,  # type: ignore[arg-type]  # of the account
    )


def failed_worker(
    rank: int,
    at_ns: int,
    *,
    local: int,
    code: int = 1,
    origin: Origin = Origin.INTRINSIC,
    summary: str = "",
    text: str = TRACEBACK,
) -> FailedWorker:
    """Return one worker's part in an incident."""
    return FailedWorker(
        exit=WorkerExit(
            local_rank=local, global_rank=rank, pid=4000 + rank, code=code, at_s=1.0, at_ns=at_ns, runtime_s=10.0
        ),
        origin=origin,
        failure_class=FailureClass.USER_EXCEPTION,
        summary=summary or "ValueError: loss is nan",
        at_ns=at_ns,
        error=ErrorRecord(source="hook", type="ValueError", message="loss is nan", timestamp_ns=at_ns, callstack=text),
        log_paths=(f"/tmp/elastic/bert-7/round_0/{local}/stderr.log",),
    )


def incident_row(
    number: int,
    at_s: float,
    *,
    run_id: str = "bert-7",
    node_id: str = "node-b",
    round_: int = 0,
    rank: int = 2,
    local: int = 0,
    stopped: Sequence[tuple[int, int]] = (),
    last: bool = False,
    traceback: str = TRACEBACK,
    **fields: object,
) -> IncidentRow:
    """Return an incident whose first cause is an exception of one worker."""
    at_ns = BEGAN_NS + int(at_s * 1e9)
    decision = (
        Stop(reason="all 3 restarts are used", rule="max-restarts")
        if last
        else Restart(delay_s=0.5, rule="max-restarts")
    )
    row: Mapping[str, object] = {
        "sentence": f"round {round_} failed: rank {rank} on {node_id} raised ValueError: loss is nan (train.py:61)",
        "followers": f"{sum(high - low + 1 for low, high in stopped)} other workers stopped because of it"
        if stopped
        else "",
        "decision": "stop: all 3 restarts are used" if last else "restart after 0.5 s",
        "rule": "max-restarts",
        "detect_s": 0.8,
        "recover_s": None if last else 9.5,
        "lost_s": 41.0,
        **fields,
    }
    return IncidentRow(
        number=number,
        at_s=at_s,
        traceback=traceback,
        incident=Incident(
            run_id=run_id,
            node_id=node_id,
            host=f"{node_id}.cluster",
            round_index=round_,
            at_ns=at_ns,
            at="2026-11-26T02:34:56Z",
            source="worker",
            failure_class=FailureClass.USER_EXCEPTION,
            summary="ValueError: loss is nan",
            exit_code=1,
            first=failed_worker(rank, at_ns, local=local, text=traceback),
            secondary=(
                failed_worker(
                    rank + 1,
                    at_ns + 200_000_000,
                    local=local + 1,
                    code=-6,
                    origin=Origin.COLLATERAL,
                    summary="killed by SIGABRT (6): connection closed by peer",
                ),
            ),
            stopped_ranks=tuple(stopped),
            stopped_count=sum(high - low + 1 for low, high in stopped),
            decision=decision,
            progress=1200,
        ),
        **row,  # type: ignore[arg-type]  # of the row
    )


def small(
    *, run_id: str = "digits", node_id: str = "laptop", message: str = "ValueError: boom", traceback: str = TRACEBACK
) -> Report:
    """Return one node with two workers for 20 seconds; rank 1 raises an exception, and the run ends."""
    lane = Lane(node_id).add(S.RENDEZVOUS, 0.02).add(S.STARTING, 3.1, 0).add(S.PRODUCTIVE, 15.6, 0)
    lane.add(S.DECIDING, 0.2, 0).add(S.STOPPING, 1.1, 0)
    lane.workers = [
        WorkerBar(
            local_rank=0,
            global_rank=0,
            round=0,
            begin_s=0.05,
            end_s=19.9,
            code=-15,
            stopped=True,
            first_step=1,
            last_step=311,
        ),
        WorkerBar(local_rank=1, global_rank=1, round=0, begin_s=0.05, end_s=18.7, code=1, first_step=1, last_step=310),
    ]
    log = f"/tmp/elastic-{node_id}/digits/round_0/1/stderr.log"
    node = lane.done("failed", host=node_id, run_dir=f"/tmp/elastic-{node_id}/digits", log_paths=(log,))
    row = incident_row(
        1,
        18.7,
        run_id=run_id,
        node_id=node_id,
        rank=1,
        local=1,
        stopped=((0, 0),),
        last=True,
        traceback=traceback,
        sentence=f"round 0 failed: rank 1 on {node_id} raised {message} (train.py:61)",
        log_paths=(log,),
        last_save_s=None,
        lost_s=1.3,
        detect_s=0.2,
    )
    return Report(
        generated_ns=BEGAN_NS + 60_000_000_000,
        source="this machine",
        run=RunFacts(
            run_id=run_id,
            script="train.py",
            backend="local",
            state="failed",
            exit_code=1,
            began_ns=BEGAN_NS,
            ended_s=20.02,
            world_size=2,
            sentence=f"The run failed after 20 s: rank 1 raised {message} (train.py:61)",
            evidence=(message, 'File "/srv/bert/train.py", line 61, in step', "exit code 1, rule max-restarts"),
        ),
        account=account(
            [node],
            frozen=True,
            sentence="4.4 s of 20 s lost: 3.1 s starting.",
            lost=(
                LostTime(state=S.STARTING, seconds=3.1, text="3.1 s starting"),
                LostTime(state=S.STOPPING, seconds=1.1, text="1.1 s stopping workers after the failure"),
            ),
        ),
        nodes=(node,),
        rounds=(
            RoundRow(
                index=0, begin_s=0.02, end_s=20.02, node_count=1, world_size=2, ended_by="failure", reason=message
            ),
        ),
        events=(
            TimelineEvent(
                at_s=18.7, name="worker_failed", text=f"rank 1 failed: {message}", node=node_id, rank=1, incident=1
            ),
            TimelineEvent(
                at_s=18.9,
                name="decision",
                text="stop: no restarts are allowed (max-restarts)",
                node=node_id,
                incident=1,
            ),
        ),
        incidents=(row,),
        options=(("--nproc-per-node", "2", "flag --nproc-per-node"), *OPTIONS[4:]),
        versions=VERSIONS,
        clocks="All times are of one machine.",
    )


def medium() -> Report:
    """Return 12 nodes in two attempts: a crash, a lost node, a hang, a drain, saves, and clocks that differ."""
    drawn = random.Random(7)
    lanes: list[NodeLane] = []
    events: list[TimelineEvent] = []
    for n in range(12):
        name = f"gpu-{n:02d}"
        lane = Lane(name).add(S.QUEUED, 300).add(S.RENDEZVOUS, 12 + n % 3)
        lane.add(S.STARTING, 40 + 6 * drawn.random(), 0)
        training(lane, 0, 3900 - lane.at_s, 900, [*range(8)], 8 * n)
        if n == 3:  # the crash of rank 26
            lane.add(S.DECIDING, 2, 0).add(S.STOPPING, 1, 0)
        else:
            lane.add(S.STOPPING, 3, 0, "rank 26 on gpu-03 failed")
        lane.add(S.RESTARTING, 30, 0).add(S.RENDEZVOUS, 9, 0).add(S.STARTING, 45, 1).add(S.RESTORING, 25, 1)
        lane.add(S.REDONE, 700, 1, "steps 3001 to 3600 were executed before")
        begun = lane.at_s - 770
        if n == 7:  # silent from 6,000 s on
            lane.add(S.PRODUCTIVE, 6000 - lane.at_s, 1).add(S.HUNG, 90, 1, "the agent gave no sign of life")
            lane.workers += [worker(8 * n + k, k, 1, begun, 6000) for k in range(8)]
            lanes.append(lane.done("lost", host=f"{name}.cluster", inferred=True))
            events.append(TimelineEvent(at_s=6090, name="lost", text="gpu-07 was lost: its lease expired", node=name))
            continue
        lane.workers += [worker(8 * n + k, k, 1, begun, 6095, stopped=True) for k in range(8)]
        lane.add(S.PRODUCTIVE, 6092 - lane.at_s, 1).add(S.STOPPING, 5, 1).add(S.RENDEZVOUS, 20 + n % 4, 1)
        lane.add(S.STARTING, 50, 2).add(S.RESTORING, 20, 2).add(S.REDONE, 400, 2)
        place = n - (n > 7)
        training(lane, 2, 9400 - lane.at_s, 900, [*range(8)], 8 * place)
        if n == 11:
            lane.add(S.DRAINED, 60, 2, "the scheduler asked the node to leave")
            events.append(
                TimelineEvent(at_s=9400, name="drain", text="gpu-11 drains: SIGTERM of the scheduler", node=name)
            )
            lanes.append(lane.done("stopped", host=f"{name}.cluster"))
            continue
        lane.add(S.RENDEZVOUS, 15, 2).add(S.STARTING, 44, 3)
        if n == 0:
            lane.add(S.STORE_OUTAGE, 40, 3)
        training(lane, 3, 11_000 - lane.at_s, 900, [*range(8)], 8 * place)
        lane.add(S.HUNG, 600, 3, "no progress of any rank").add(S.DECIDING, 4, 3).add(S.STOPPING, 15, 3)
        lanes.append(
            lane.done(
                "failed",
                host=f"{name}.cluster",
                run_dir=f"/scratch/runs/{name}/bert-7",
                clock_offset_s=3.2 if n == 5 else 0.0,
                log_paths=tuple(
                    f"/scratch/runs/{name}/bert-7/round_{r}/{k}/stderr.log" for r in range(4) for k in range(8)
                ),
            )
        )
    new = Lane("spare-01", 9000).add(S.EXCLUDED, 415, None, "waits as a spare").add(S.STARTING, 44, 3)
    training(new, 3, 11_000 - new.at_s, 900, [*range(8)], 80)
    new.add(S.HUNG, 600, 3).add(S.DECIDING, 4, 3).add(S.STOPPING, 15, 3)
    lanes.append(new.done("failed", host="spare-01.cluster"))
    events += [
        TimelineEvent(at_s=312, name="round", text="round 0 formed: 12 nodes, 96 workers"),
        TimelineEvent(
            at_s=3900,
            name="worker_failed",
            text="rank 26 raised ValueError: loss is nan",
            node="gpu-03",
            rank=26,
            incident=1,
        ),
        TimelineEvent(at_s=3902, name="decision", text="restart after 30 s (max-restarts)", node="gpu-03", incident=1),
        TimelineEvent(at_s=9415, name="joined", text="spare-01 joined", node="spare-01"),
        TimelineEvent(
            at_s=11_600,
            name="hang",
            text="no progress for 10 min; rank 17 is blamed",
            node="gpu-02",
            rank=17,
            incident=3,
        ),
        TimelineEvent(at_s=11_604, name="decision", text="stop: all 3 restarts are used", node="gpu-02", incident=3),
    ]
    events += [
        TimelineEvent(at_s=at, name="save", text=f"saved step {at // 2}", node="gpu-00")
        for at in range(1200, 11_000, 900)
    ]
    nodes = tuple(lanes)
    return Report(
        generated_ns=BEGAN_NS + 90_000_000_000_000,
        source="redis at head:6379",
        run=RunFacts(
            run_id="bert-7",
            script="train.py --config large.yaml",
            backend="redis",
            state="failed",
            exit_code=1,
            began_ns=BEGAN_NS,
            ended_s=11_619,
            node_count=12,
            world_size=96,
            restart_count=1,
            membership_changes=2,
            sentence="The run failed after 3 h 14 min: rank 17 on gpu-02 hung in all_reduce (train.py:61)",
            evidence=(
                "no progress of any rank from 05:38:16 to 05:48:16",
                "rank 17: quiet for 600 s at train.py:61 in step",
                "87 other ranks wait in ncclAllReduce",
                "exit code 1; decision: stop, all 3 restarts are used (max-restarts)",
            ),
        ),
        account=account(
            nodes,
            frozen=True,
            sentence="8 h 3 min of 37 h 9 min lost: 3 h 20 min redone after the failure at 03:39, last save 03:24.",
            lost=(
                LostTime(
                    state=S.REDONE, seconds=12_400, text="3 h 26 min redone after the failure at 03:39, last save 03:24"
                ),
                LostTime(state=S.HUNG, seconds=6_690, text="1 h 51 min hung: no progress of any rank from 05:38"),
                LostTime(state=S.QUEUED, seconds=3_600, text="1 h queued"),
            ),
        ),
        nodes=nodes,
        rounds=(
            RoundRow(
                index=0,
                begin_s=312,
                end_s=3903,
                node_count=12,
                world_size=96,
                ended_by="failure",
                reason="rank 26 on gpu-03 failed",
                joined=tuple(f"gpu-{n:02d}" for n in range(12)),
            ),
            RoundRow(
                index=1,
                begin_s=3942,
                end_s=6097,
                node_count=12,
                world_size=96,
                ended_by="membership",
                reason="gpu-07 was lost",
                lost=("gpu-07",),
            ),
            RoundRow(
                index=2,
                begin_s=6117,
                end_s=9400,
                node_count=11,
                world_size=88,
                ended_by="drain",
                reason="gpu-11 left",
                left=("gpu-11",),
            ),
            RoundRow(
                index=3,
                begin_s=9415,
                end_s=11_619,
                node_count=11,
                world_size=88,
                ended_by="failure",
                reason="hang",
                joined=("spare-01",),
            ),
        ),
        events=tuple(sorted(events, key=lambda event: event.at_s)),
        incidents=(
            incident_row(
                1,
                3900,
                node_id="gpu-03",
                rank=26,
                local=2,
                stopped=((0, 25), (27, 95)),
                recover_s=119.0,
                lost_s=13_100.0,
                last_save_s=3012.0,
            ),
            incident_row(
                2,
                6000,
                node_id="gpu-07",
                rank=56,
                stopped=((0, 55),),
                round_=1,
                detect_s=90.0,
                recover_s=99.0,
                lost_s=2_400.0,
                last_save_s=5600.0,
                traceback="",
                sentence="round 1 ended: gpu-07 was lost",
            ),
            incident_row(
                3,
                11_000,
                node_id="gpu-02",
                rank=17,
                local=1,
                round_=3,
                stopped=((0, 87),),
                last=True,
                detect_s=600.0,
                lost_s=6_600.0,
                last_save_s=10_712.0,
                sentence="round 3 failed: rank 17 on gpu-02 hung in all_reduce (train.py:61)",
            ),
        ),
        options=OPTIONS,
        versions=VERSIONS,
        compared_with="bert-7 of 2026-11-25 01:10 UTC, which succeeded after 9 h 2 min",
        differences=(
            Difference(kind="option", name="--max-restarts", before="10", now="3"),
            Difference(kind="version", name="torch", before="2.12.1+cu128", now="2.13.0+cu128"),
            Difference(kind="node", name="gpu-11", before="", now="64 processors, 8 GPUs"),
        ),
        clocks="The clock of gpu-05 was ahead of that of gpu-00 by 3.2 s, which was subtracted.",
        missing=("The ledger of gpu-07 is missing: its lane was inferred from the records of 11 other nodes.",),
    )


def training(lane: Lane, round_: int, seconds: float, every: float, locals_: list[int], base: int) -> None:
    """Add productive time with a save at each interval, and the workers of the round."""
    begin, end = lane.at_s, lane.at_s + seconds
    marks: list[tuple[str, float, float]] = []
    while end - lane.at_s > every:
        lane.add(S.PRODUCTIVE, every - 12, round_).add(S.SAVING, 12, round_)
        marks.append(("save", lane.at_s - 12, lane.at_s))
    lane.add(S.PRODUCTIVE, end - lane.at_s, round_)
    for k in locals_:
        code = 1 if base + k == 26 and round_ == 0 else -15
        lane.workers.append(
            WorkerBar(
                local_rank=k,
                global_rank=base + k,
                round=round_,
                begin_s=begin - 40,
                end_s=end + (0.0 if code == 1 else 2.5),
                code=code,
                stopped=code != 1,
                marks=tuple(marks),
                first_step=1 + 1500 * round_,
                last_step=3600 + 1500 * round_,
            )
        )


def worker(rank: int, local: int, round_: int, begin: float, end: float, *, stopped: bool = False) -> WorkerBar:
    """Return a worker that was stopped, or whose end is not known."""
    return WorkerBar(
        local_rank=local,
        global_rank=rank,
        round=round_,
        begin_s=begin,
        end_s=end,
        code=-15 if stopped else None,
        stopped=stopped,
    )


def large(node_count: int = 1000, round_count: int = 100, worker_count: int = 8) -> Report:
    """Return many nodes for many rounds: each round ends with the failure of a worker. Times differ for each node."""
    drawn = random.Random(11)
    lanes = [Lane(f"node-{n:04d}") for n in range(node_count)]
    rounds, events, incidents = [], [], []
    for index in range(round_count):
        begin = max(lane.at_s for lane in lanes)
        length = 500 + 200 * drawn.random()
        culprit = drawn.randrange(node_count)
        reason = f"rank {culprit * worker_count} on node-{culprit:04d} failed"
        for n, lane in enumerate(lanes):
            lane.add(S.RENDEZVOUS, begin - lane.at_s + 1 + drawn.random(), index - 1 if index else None)
            begun = lane.at_s
            lane.add(S.STARTING, 8 + 4 * drawn.random(), index).add(S.RESTORING, 3 + drawn.random(), index)
            if index:
                lane.add(S.REDONE, 40 + drawn.random(), index)
            for _ in range(3):
                lane.add(S.PRODUCTIVE, length / 4 + drawn.random(), index).add(S.SAVING, 2 + drawn.random(), index)
            lane.add(S.PRODUCTIVE, begin + length - lane.at_s if begin + length > lane.at_s else 1.0, index)
            for k in range(worker_count):
                bad = n == culprit and not k
                lane.workers.append(
                    WorkerBar(
                        local_rank=k,
                        global_rank=n * worker_count + k,
                        round=index,
                        begin_s=begun + drawn.random() / 50,
                        end_s=lane.at_s + drawn.random() / 5,
                        code=1 if bad else -15,
                        stopped=not bad,
                        marks=(("save", begun + length / 4, begun + length / 4 + 2),),
                        first_step=index * 400,
                        last_step=index * 400 + 520,
                    )
                )
            lane.add(S.STOPPING, 1 + drawn.random(), index, reason).add(S.DECIDING, 0.5, index).add(
                S.RESTARTING, 5, index
            )
        end = lanes[culprit].at_s
        row = incident_row(
            index + 1,
            end - 7,
            node_id=f"node-{culprit:04d}",
            rank=culprit * worker_count,
            round_=index,
            traceback=TRACEBACK * 60,
            stopped=((0, node_count * worker_count - 1),),
        )
        incidents.append(row)
        rounds.append(
            RoundRow(
                index=index,
                begin_s=begin,
                end_s=end,
                node_count=node_count,
                world_size=node_count * worker_count,
                ended_by="failure",
                reason=reason,
                joined=tuple(lane.node_id for lane in lanes) if not index else (),
            )
        )
        events.append(
            TimelineEvent(
                at_s=end - 7,
                name="worker_failed",
                text=reason,
                node=f"node-{culprit:04d}",
                rank=culprit * worker_count,
                incident=index + 1,
            )
        )
        events.append(
            TimelineEvent(
                at_s=end - 6,
                name="decision",
                text="restart after 5 s (max-restarts)",
                node="node-0000",
                incident=index + 1,
            )
        )
        events += (
            TimelineEvent(
                at_s=begin + length / 2, name="save", text=f"saved step {index * 400 + 260}", node=lane.node_id
            )
            for lane in lanes
        )
    for lane in lanes:
        lane.add(S.STOPPING, 0.5)
    nodes = tuple(
        lane.done(
            "stopped",
            host=f"{lane.node_id}.cluster",
            run_dir=f"/scratch/runs/{lane.node_id}/llm",
            log_paths=tuple(
                f"/scratch/runs/{lane.node_id}/llm/round_{r}/{k}/stderr.log" for r in range(8) for k in range(8)
            ),
        )
        for lane in lanes
    )
    return Report(
        generated_ns=BEGAN_NS + 90_000_000_000_000,
        source="etcd at head:2379",
        run=RunFacts(
            run_id="llm",
            script="pretrain.py",
            backend="etcd",
            state="stopped",
            exit_code=143,
            began_ns=BEGAN_NS,
            ended_s=max(lane.at_s for lane in lanes),
            node_count=node_count,
            world_size=node_count * worker_count,
            restart_count=round_count,
            sentence="The run was stopped by SIGTERM after 100 rounds",
        ),
        account=account(nodes, frozen=True, sentence="2,100 h of 17,000 h lost: 1,100 h redone after 100 failures."),
        nodes=nodes,
        rounds=tuple(rounds),
        events=tuple(sorted(events, key=lambda event: event.at_s)),
        incidents=tuple(incidents),
        options=OPTIONS,
        versions=VERSIONS,
        clocks="All clocks agree to 0.4 s.",
    )


def hostile() -> Report:
    """Return a small report whose texts are made to break a page, a terminal or a script."""
    bad = "</script><script>window.broken = 1</script><img src=x onerror='window.broken=2'>\x1b[31m\u202e\x00"
    node_id = "node\"'><b>\u202e&1"
    return small(
        run_id=f"run {bad}",
        node_id=node_id,
        message=f"ValueError: {bad}",
        traceback=f"Traceback:\n\t{bad}\n<!-- \udcff",
    )


def replaced(report: Report, **fields: object) -> Report:
    """Return the report with other fields."""
    return msgspec.structs.replace(report, **fields)


def html(name: str) -> str:
    """Return the page of a sample."""
    return render({"small": small, "medium": medium, "hostile": hostile, "large": large}[name]())

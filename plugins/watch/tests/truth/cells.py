"""The faults with known truth, and the runs (lanes) in which they are played. Data only."""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

NPROC: Final = 4
"""The world size of each lane."""


class Expected(StrEnum):
    """What the report has to do."""

    NAMED = "must be named"
    MAY = "may be unnamed"
    NONE = "no rank is the cause"
    NO_HANG = "no hang"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One fault and its truth."""

    text: str
    """What the rank did, for the table."""
    fault: str
    """The function in `faults`."""
    ranks: tuple[int, ...] = ()
    """The truth: the ranks that cause the hang."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the fault."""
    expected: Expected = Expected.NAMED
    rare: bool = False
    """Whether it is played only in full runs."""
    without_recorder: Expected | None = None
    """The expectation without the flight recorder. `None` means the same."""

    def played(self) -> tuple[str, dict[str, Any]]:
        """Return the entry of a lane's list."""
        ranks = {"ranks": list(self.ranks)} if self.ranks else {}
        return self.fault, ranks | self.arguments

    def expects(self, *, recorder: bool) -> Expected:
        """Return the expectation in a lane."""
        return self.expected if recorder or self.without_recorder is None else self.without_recorder


def missing(text: str, how: str, call: str = "all_reduce", *, ranks: tuple[int, ...] = (1,), **more: Any) -> Cell:
    """Return a cell in which ranks do not enter a collective."""
    arguments = {"how": how, "call": call} | ({"early": True} if more.pop("early", False) else {})
    return Cell(text=text, fault="missing", ranks=ranks, arguments=arguments, **more)


N, MAY, NONE, NO_HANG = Expected.NAMED, Expected.MAY, Expected.NONE, Expected.NO_HANG

BEFORE: Final = (
    missing("loops in user code before `all_reduce`", "sleep"),
    missing("loops before it reports the step of the others", "sleep", early=True),
    missing("computes without end before `all_gather`", "spin", "all_gather", ranks=(2,), rare=True),
    missing("waits for a lock before `reduce_scatter`", "lock", "reduce_scatter", ranks=(3,), rare=True),
    missing("waits for an empty queue before `barrier`", "empty_queue", "barrier", ranks=(0,)),
    missing("is the root of a `broadcast` and reads a pipe", "pipe", "broadcast", ranks=(0,), rare=True),
    missing("waits for a child process before `all_to_all`", "subprocess", "all_to_all", ranks=(2,), rare=True),
    missing("is in a C call that keeps the interpreter's lock", "held_interpreter"),
    missing("is in a regular expression without end", "regex", "gather", ranks=(3,)),
    missing("is stopped by SIGSTOP before `all_reduce`", "stop", ranks=(2,)),
    missing("waits for a worker of its `DataLoader`", "data_loader", ranks=(3,)),
    missing("computes in C++ without end before `reduce`", "compute", "reduce", ranks=(2,), rare=True),
    missing("is in a section over its limit", "expired_section"),
    missing("is in `elastic_train.saving()` in a section over its limit", "save", ranks=(0,)),
    missing("hangs in an exit handler", "exit_handler", ranks=(1,), rare=True),
    missing("two ranks of four loop before `all_reduce`", "sleep", ranks=(0, 2)),
    missing("three ranks of four loop before `all_reduce`", "sleep", ranks=(0, 1, 3), expected=MAY, rare=True),
    missing("loops; the others wait by the handle of an asynchronous operation", "sleep", "wait_of_async"),
    missing("loops before `all_gather_object`", "sleep", "all_gather_object", ranks=(2,)),
)
INSIDE: Final = (
    Cell(text="is stopped by SIGSTOP inside `all_reduce`", fault="stopped_inside", ranks=(1,)),
    Cell(text="enters an asynchronous operation, then loops", fault="entered_and_left", ranks=(2,), rare=True),
    Cell(text="loops; rank 0 is five asynchronous operations ahead", fault="ahead_by_async", ranks=(2,)),
    Cell(
        text="loops; the root of `broadcast` is three operations ahead",
        fault="ahead_by_broadcast",
        ranks=(3,),
        rare=True,
    ),
    Cell(text="has one batch less and sleeps after the loop", fault="fewer_batches", ranks=(2,), expected=MAY),
    Cell(
        text="three ranks of four have one batch less and sleep after the loop",
        fault="fewer_batches",
        ranks=(0, 1, 3),
        expected=MAY,
        rare=True,
    ),
    Cell(text="loops; the others wait for a functional collective", fault="functional", ranks=(0,)),
    Cell(
        text="loops in a thread; the others wait for a thread in `all_reduce`",
        fault="collective_in_thread",
        ranks=(2,),
        arguments={"polls": False},
        expected=MAY,
    ),
    Cell(
        text="loops in a thread; the main threads of all ranks poll",
        fault="collective_in_thread",
        ranks=(2,),
        arguments={"polls": True},
        expected=MAY,
        rare=True,
    ),
    Cell(
        text="loops; two ranks poll the handle of an operation, one waits in it",
        fault="polled_handle",
        ranks=(2,),
        arguments={"polling": [0, 1]},
        without_recorder=MAY,
    ),
    Cell(text="leaves out the last `backward` under DDP", fault="skipped_backward", ranks=(1,)),
    Cell(text="has no gradient for a layer under DDP", fault="unused_parameter", ranks=(1,), expected=MAY),
)
CREATION: Final = (
    Cell(text="does not call `init_process_group`", fault="missing_from_group_creation", ranks=(3,)),
    Cell(text="ends with 0 before `init_process_group`", fault="ended_before_group_creation", ranks=(2,), expected=MAY),
    Cell(
        text="calls `init_process_group` two limits after the others, before the first heartbeat",
        fault="late_to_group_creation",
        arguments={"ranks": [1], "parts": 2.0},
        expected=NO_HANG,
    ),
    Cell(text="does not call `new_group`", fault="missing_from_new_group", ranks=(1,)),
    Cell(text="ends with 0 before `new_group`", fault="ended_before_new_group", ranks=(2,), expected=MAY),
    Cell(text="does not set a key; one rank waits in `store.get`", fault="missing_key", ranks=(2,)),
    Cell(
        text="does not set a key; the others wait in `store.wait`",
        fault="missing_from_store_wait",
        ranks=(3,),
        rare=True,
    ),
    Cell(text="does not call `monitored_barrier`", fault="missing_from_monitored_barrier", ranks=(1,), rare=True),
    Cell(text="all wait for a key that no rank sets", fault="key_of_no_rank", expected=NONE),
    Cell(text="three ranks call `new_group`, one `all_reduce`", fault="absent_new_group", expected=NONE),
)
POINT_TO_POINT: Final = (
    Cell(text="does not send; one rank waits in `recv`", fault="missing_sender", ranks=(2,)),
    Cell(text="does not receive; one rank waits in `send`", fault="missing_receiver", ranks=(1,), rare=True),
    Cell(text="waits in `recv` for a rank that does not send", fault="receiver_without_sender", expected=NONE),
    Cell(text="loops in its stage of a pipeline of `send` and `recv`", fault="pipeline", ranks=(2,), rare=True),
    Cell(text="loops in a pipeline whose first ranks are a step ahead", fault="pipeline_with_leads", ranks=(2,)),
    Cell(text="does not take part in `batch_isend_irecv`", fault="batch_of_sends", ranks=(1,)),
)
GROUPS: Final = (
    Cell(text="loops before an operation of its row (mesh of two by two)", fault="mesh", ranks=(3,)),
    Cell(
        text="is stopped by SIGSTOP before an operation of its row (mesh of two by two)",
        fault="mesh",
        ranks=(2,),
        arguments={"how": "stop"},
    ),
    Cell(text="is the end of a chain of three groups", fault="chain", ranks=(3,)),
    Cell(text="is missing in a group of three; the fourth waits in a barrier", fault="missing_in_subgroup", ranks=(2,)),
    Cell(
        text="is missing in a group that was destroyed and created again",
        fault="recreated_group",
        ranks=(1,),
        rare=True,
    ),
    Cell(text="is missing after the default group was created again", fault="recreated_world", ranks=(3,)),
    Cell(text="two groups of all ranks in different orders", fault="different_order", expected=NONE),
    Cell(text="four groups of two in a circle", fault="circle", expected=NONE, rare=True),
    Cell(
        text="four groups of two in a circle; one rank is a step ahead",
        fault="circle",
        arguments={"ahead": True},
        expected=NONE,
    ),
)
MISMATCH: Final = (
    Cell(
        text="calls `all_gather` where the others call `all_reduce`",
        fault="other_operation",
        ranks=(1,),
        expected=MAY,
    ),
    Cell(
        text="calls `barrier` where the others call `all_reduce`",
        fault="other_operation",
        ranks=(2,),
        arguments={"call": "barrier"},
        expected=MAY,
        rare=True,
    ),
    Cell(text="uses another root of a `broadcast`", fault="other_root", ranks=(1,), expected=MAY),
    Cell(text="loops; another rank uses another size", fault="other_size_and_missing", ranks=(1,)),
    Cell(
        text="enters two asynchronous operations in the other order",
        fault="crossed_async",
        ranks=(1,),
        expected=MAY,
        rare=True,
    ),
)
OTHER_SCRIPTS: Final = (
    Cell(text="loops; the script calls `should_stop` only", fault="missing_by_should_stop", ranks=(1,)),
    Cell(text="loops; the script sends no heartbeats", fault="missing_without_heartbeats", ranks=(2,)),
    Cell(text="loops at an earlier step, without `torch.distributed`", fault="plain_steps", ranks=(2,)),
    Cell(
        text="loops at the same step, without `torch.distributed`",
        fault="plain_same_step",
        ranks=(2,),
        expected=MAY,
    ),
    Cell(text="loops in the first operation of a later round", fault="after_restart", ranks=(1,), rare=True),
)
NONE_HANGS: Final = (
    Cell(
        text="no rank sends a heartbeat for three limits, and all go on",
        fault="steps_without_heartbeats",
        expected=NO_HANG,
    ),
    Cell(
        text="saves in `elastic_train.saving()` for two limits",
        fault="long_save",
        arguments={"ranks": [0], "parts": 2.0},
        expected=NO_HANG,
    ),
    Cell(text="is slow in each step", fault="slow_rank", arguments={"ranks": [1]}, expected=NO_HANG),
    Cell(
        text="needs three quarters of the limit once",
        fault="long_step",
        arguments={"ranks": [2], "part": 0.75},
        expected=NO_HANG,
        rare=True,
    ),
    Cell(
        text="is in a section for two limits",
        fault="long_section",
        arguments={"ranks": [1], "parts": 2.0},
        expected=NO_HANG,
    ),
    Cell(
        text="a debugger stops it for two limits",
        fault="traced",
        ranks=(),
        arguments={"ranks": [1], "parts": 2.0},
        expected=NO_HANG,
    ),
    Cell(
        text="all processes of the job are stopped for two limits",
        fault="suspended_job",
        arguments={"parts": 2.0},
        expected=NO_HANG,
    ),
)

SLOW: Final = (
    Cell(text="needs three times the time of the others", fault="slow_by_sleep", ranks=(2,), arguments={"factor": 3.0}),
    Cell(
        text="two ranks need four times the time",
        fault="slow_by_sleep",
        ranks=(0, 3),
        arguments={"factor": 4.0},
        expected=MAY,
        rare=True,
    ),
    Cell(text="is stopped by SIGSTOP for three quarters of the time", fault="slow_by_stops", ranks=(1,)),
    Cell(text="shares its processor with other programs", fault="slow_by_neighbours", ranks=(1,), expected=MAY),
    Cell(
        text="all ranks need the same time",
        fault="slow_by_sleep",
        arguments={"ranks": [], "factor": 1.0},
        expected=NONE,
    ),
    Cell(text="another rank is slow in each step", fault="slow_in_turns", expected=NONE),
    Cell(
        text="a rank is slow in one step of thirty",
        fault="slow_at_times",
        arguments={"ranks": [2]},
        expected=NONE,
        rare=True,
    ),
    Cell(text="the time of each rank and step differs by chance", fault="slow_by_chance", expected=NONE),
)


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One run that plays cells, one in each round."""

    name: str
    cells: tuple[Cell, ...]
    nodes: int = 1
    recorder: bool = True
    stragglers: bool = False
    """Whether its ranks are slow instead of hanging."""

    def usual(self) -> "Lane":
        """Return the lane without its rare cells."""
        return replace(self, cells=tuple(cell for cell in self.cells if not cell.rare))


def _with(cells: tuple[Cell, ...], *faults: str) -> tuple[Cell, ...]:
    return tuple(cell for cell in cells if cell.fault in faults)


LANES: Final = (
    Lane(name="before", cells=(*BEFORE, *OTHER_SCRIPTS)),
    Lane(name="groups", cells=(*GROUPS, *MISMATCH, *NONE_HANGS, *POINT_TO_POINT)),
    Lane(name="calls", cells=(*INSIDE, *CREATION)),
    Lane(
        name="no recorder",
        recorder=False,
        cells=(
            *(each for each in BEFORE if each.arguments["how"] in ("sleep", "stop", "held_interpreter", "data_loader")),
            *_with(INSIDE, "stopped_inside", "entered_and_left", "ahead_by_async", "polled_handle", "unused_parameter"),
            *_with(INSIDE, "skipped_backward", "functional"),
            *_with(CREATION, "missing_key", "key_of_no_rank", "absent_new_group"),
            *_with(POINT_TO_POINT, "receiver_without_sender", "pipeline_with_leads", "batch_of_sends"),
            *_with(GROUPS, "mesh", "chain", "different_order", "circle"),
            *_with(MISMATCH, "other_operation"),
        ),
    ),
    Lane(
        name="two nodes",
        nodes=2,
        cells=(
            missing("both ranks of a node loop", "sleep", ranks=(2, 3)),
            missing("loops on one of two nodes", "sleep", ranks=(3,)),
            missing("loops on the other node before it reports the step", "sleep", ranks=(0,), early=True),
            missing("is stopped by SIGSTOP on one of two nodes", "stop", ranks=(2,)),
            *_with(GROUPS, "mesh", "chain", "different_order", "circle"),
            *_with(POINT_TO_POINT, "missing_sender", "pipeline_with_leads", "receiver_without_sender"),
            *_with(MISMATCH, "other_operation"),
            *_with(INSIDE, "skipped_backward", "unused_parameter", "fewer_batches"),
            *_with(CREATION, "key_of_no_rank", "missing_from_group_creation"),
            *_with(OTHER_SCRIPTS, "missing_without_heartbeats"),
        ),
    ),
    Lane(
        name="two nodes, no recorder",
        nodes=2,
        recorder=False,
        cells=(
            missing("loops on one of two nodes", "sleep", ranks=(3,)),
            missing("loops on the other node before it reports the step", "sleep", ranks=(0,), early=True),
            *_with(GROUPS, "chain"),
            *_with(POINT_TO_POINT, "missing_sender", "pipeline_with_leads", "receiver_without_sender"),
            *_with(INSIDE, "skipped_backward"),
            *_with(CREATION, "key_of_no_rank"),
            *_with(OTHER_SCRIPTS, "plain_steps"),
        ),
    ),
    Lane(name="stragglers", stragglers=True, cells=SLOW),
)

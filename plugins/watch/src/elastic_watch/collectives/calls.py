"""The call of torch.distributed in which a worker's main thread is, from its Python frames.

Source: torch 2.13. Code in C++ has no frame: autograd's engine waits for the gradients' collectives in
`_engine_run_backward`, and `Work.wait()` or a method of a store shows only the line that calls it.
"""

import linecache
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from elastic_core.api.workers import parse_fault_frames
from elastic_watch.stacks import Frame, is_own_code

BACKWARD: Final = "backward"
"""The main thread is in autograd's engine, which computes, or waits for a collective."""
UNKNOWN: Final = "unknown"
"""The innermost line is not known, or may wait for other ranks in code without a frame."""

_POINT_TO_POINT: Final = frozenset(
    {"send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list"}
)
_OUTSIDE_GROUPS: Final = frozenset(
    {"init_process_group", "new_group", "new_subgroups", "new_subgroups_by_enumeration", "split_group", "shrink_group",
     "destroy_process_group", "monitored_barrier", "rendezvous", "init_device_mesh"}
)  # fmt: skip
_CREATION: Final = frozenset({"init_process_group", "new_group"})
_C10D: Final = "/torch/distributed/distributed_c10d.py"
_CALLS: Final = re.compile(
    r"/torch/distributed/(?:distributed_c10d|rendezvous|_functional_collectives|utils|device_mesh)\.py$"
    r"|/torch/distributed/(?:fsdp|_composable|algorithms|pipelining|nn|optim)/(?!.*__init__)"
    r"|/torch/nn/parallel/distributed\.py$"
)
"""Modules that wait for other ranks in C++ code."""
_OTHER_CALLS: Final = re.compile(r"/torch/distributed/(?!checkpoint/|elastic/|launch|run\.py)")
_WRAPPERS: Final = re.compile(
    r"/contextlib\.py$|/torch/(?:_ops|_compile|_library/\w+|utils/_contextlib|distributed/c10d_logger)\.py$"
)
_ENGINE: Final = ("/torch/autograd/graph.py", "_engine_run_backward")
_STORE: Final = re.compile(
    r"store\w*(?:\(\))?\.(get|wait|set|add|barrier|compare_set|multi_get|queue_pop)\(", re.IGNORECASE
)
_WAIT: Final = re.compile(r"\.wait\(|\bwait_tensor\(")
_HIDDEN: Final = re.compile(
    r"\.(?:get|recv\w*|send\w*|barrier|result|synchronize|all_?reduce|all_?gather|broadcast|reduce\w*|gather|scatter)\("
)
_INTERPRETER: Final = re.compile(r"^<|/lib/python3[^/]*/(?!site-packages/|dist-packages/)")
_THREADING: Final = re.compile(r"/(?:threading|queue|concurrent/futures/\w+)\.py$")
_READ_S: Final = 0.5

LineOf = Callable[[str, int], str]
"""A function that returns a line of a source file; empty if it is not known."""


def source_line(file: str, line: int) -> str:
    """Return a line of a source file without its indentation; empty if no file system returned it within 0.5 s."""
    found: list[str] = []

    def read() -> None:
        linecache.checkcache(file)
        found.append(linecache.getline(file, line).strip())

    # The script may be on a file system that hangs, and the agent must not.
    reader = threading.Thread(target=read, name="elastic-source", daemon=True)
    try:
        reader.start()
    except RuntimeError:  # the system has no thread left
        return ""
    reader.join(_READ_S)
    return found[0] if found else ""


def call_of(frames: Sequence[Frame], *, threads: str = "", line_of: LineOf = source_line) -> str:
    """Return the call of torch.distributed in which the main thread is; empty if it is in none.

    Args:
        frames: The main thread's frames, outermost first.
        threads: The stacks of all threads in the format of faulthandler. If the main thread waits for a thread that is
            in a call of torch.distributed, that call counts.
        line_of: Returns the source of the innermost frame, if the frame has none.

    Returns:
        The function's name, such as `all_reduce`; `store.get` for a method of a store; `wait` for `Work.wait()`;
        `backward` in autograd's engine; `unknown` if the innermost line is not known or may wait for other ranks.

    Threading: any; blocks for at most 0.5 s.
    """
    if found := _torch_call(frames):
        return found
    inner = _innermost(frames)
    if inner < 0:
        return ""
    file, line, _, text = frames[inner]
    engine = any(file.endswith(_ENGINE[0]) and function == _ENGINE[1] for file, _, function, _ in frames)
    if engine and not is_own_code(file):
        return BACKWARD
    if _OTHER_CALLS.search(file) and not is_own_code(file):
        return UNKNOWN
    if _INTERPRETER.search(file):
        found_in = (_torch_call(each) for each in _threads(threads)) if _THREADING.search(file) else ()
        return next((each for each in found_in if each), "")
    text = text or line_of(file, line)
    if store := _STORE.search(text):
        return f"store.{store[1]}"
    if _WAIT.search(text):
        return "wait"
    if engine:  # in a hook
        return BACKWARD
    return UNKNOWN if not text or _HIDDEN.search(text) else ""


def in_collective(call: str) -> bool:
    """Return whether a rank in this call waits in a collective of a group, or for its result."""
    return may_wait(call) and certain(call) and call not in _POINT_TO_POINT | _OUTSIDE_GROUPS and "." not in call


def waits_for_one(call: str) -> bool:
    """Return whether a rank in this call may wait for one other rank alone, which is not known."""
    return call in _POINT_TO_POINT or call == "wait"


def in_backward(call: str) -> bool:
    """Return whether a rank in this call computes gradients, or waits for a collective of theirs."""
    return call == BACKWARD


def in_engine(call: str, frames: Sequence[Frame]) -> bool:
    """Return whether such a rank is in torch's own code: its frames are the same if it computes and if it waits.

    If not, it is in a hook of the user's.
    """
    return in_backward(call) and bool(frames) and not is_own_code(frames[-1][0])


def creates_group(call: str) -> bool:
    """Return whether all ranks must make this call, which creates groups."""
    return call in _CREATION


def certain(call: str) -> bool:
    """Return whether a rank in this call is certainly in torch.distributed."""
    return call not in {"", BACKWARD, UNKNOWN}


def may_wait(call: str) -> bool:
    """Return whether a rank in this call may wait for other ranks."""
    return call != ""


def _innermost(frames: Sequence[Frame]) -> int:
    """Return the index of the innermost frame that is no wrapper; -1 if there is none."""
    inner = len(frames) - 1
    while inner >= 0 and _WRAPPERS.search(frames[inner][0]):
        inner -= 1
    return inner


def _torch_call(frames: Sequence[Frame]) -> str:
    """Return the call whose own frame is the innermost one; empty if there is none."""
    inner = _innermost(frames)
    if inner < 0 or not _CALLS.search(frames[inner][0]) or frames[inner][2] == "<module>":
        return ""
    if is_own_code(frames[inner][0]):  # a script in folders of these names
        return ""
    return _outermost(frames[: inner + 1]) or frames[inner][2].lstrip("_")


def _threads(text: str) -> Iterator[Sequence[Frame]]:
    """Yield the frames of each thread in a dump of faulthandler."""
    lines = text.splitlines()
    for index, line in enumerate(lines):
        if line.endswith("(most recent call first):"):
            yield parse_fault_frames(lines[index + 1 :])


def _outermost(frames: Sequence[Frame]) -> str:
    """Return the outermost public function of torch.distributed that led to the innermost frame; empty if none did."""
    found = ""
    for file, _, function, _ in reversed(frames):
        if is_own_code(file):
            break
        if file.endswith(_C10D) and not function.startswith("_"):
            found = function
    return found

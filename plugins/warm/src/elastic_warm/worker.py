"""The training function of a worker that is kept over rounds: `rounds`, `protected`, `should_stop`."""

import contextlib
import functools
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from elastic_warm import gloo_loops, groups, loaders, torch_state, transfers
from elastic_warm.client import SOCKET_VARIABLE, TIMEOUT_VARIABLE, VERSION, AgentConnection, ConnectionOverError
from elastic_warm.leaving import (
    Interrupter,
    RoundOver,
    clear_frames,
    collateral_text,
    flush_streams,
    is_round_over,
    replace_stream,
)
from elastic_warm.residue import Before

P = ParamSpec("P")
T = TypeVar("T")

DEVICES_VARIABLE: Final = "TRAINING_WARM_NCCL"
"""With `1`, processes with groups of NCCL are kept, too. Tried on one GPU only: see docs/howto/warm-functions.md."""
DEFAULT_TIMEOUT_S: Final = 10.0
_STREAMS: Final = {"stdout": 1, "stderr": 2}
_PRESS_S: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""The pauses between interrupts; the last one is repeated."""
_LOOK_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02)
"""The pauses while what the function left behind ends; the last one is repeated."""
_COLLECT_AFTER: Final = 3
"""After so many looks, a garbage collection is tried."""
_SLOW_S: Final = 0.03
"""If a collection takes longer, what has been imported since the start is exempt from the next ones."""
_MOST_FROZEN: Final = 3
_STATE_S: Final = 1.0
_LATER: Final = 0x20 | 0x80 | 0x200
"""The flags of code that a call does not run: of generators, coroutines and asynchronous generators (`inspect`)."""
_FAULTS: Final = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT})


class _Phase(Enum):
    """What the main thread is doing."""

    RUNNING = "the function runs"
    HELD = "it was left by an error of a peer"
    LEAVING = "it was left because its round is over"
    KEPT = "the process waits for its place in the next round"
    OVER = "the process can't be kept any more"


class _Leave(NamedTuple):
    """A request of the agent."""

    within_s: float
    at_s: float


class KeptWorker:
    """A worker whose agent can keep its process. One for each process, used once.

    Args:
        connection: To the agent.
        timeout_s: `--warm-timeout`, in seconds.

    Raises:
        ValueError: this is not the main thread, or no signal is free.
    """

    def __init__(self, connection: AgentConnection, timeout_s: float) -> None:
        from elastic_core.api.workers import arm_worker  # imported now: a place must be taken quickly

        self._arm_worker = arm_worker
        self._interrupter = Interrupter()
        self._connection = connection
        self._timeout_s = timeout_s
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._phase = _Phase.RUNNING
        self._round = _round()
        self._leave: _Leave | None = None
        self._place: dict[str, Any] | None = None
        self._early: dict[str, Any] | None = None
        """A request to leave the round whose place is not taken yet."""
        self._ended = self._gone = False
        self._stepped = self._told = False
        self._generation = groups.Generation()
        self._before = Before()
        self._hook = torch_state.exception_hook()
        self._grad_mode = True
        self._presses = 0
        self._state_s = 0.0
        self._frozen = 0

    # --- the main thread

    def run(self, function: Callable[[], T]) -> T:
        """Call the function, again in each round in which the process has a place. Return its last result."""
        if _tries_devices():
            torch_state.arm_devices()
        self._connection.send("hello", version=VERSION, pid=self._pid, local_rank=_local_rank(), round=self._round)
        threading.Thread(target=self._listen, name="elastic-warm", daemon=True).start()
        while True:
            self._enter()
            value, error = self._interrupter.call(function)
            if error is None and not self._told:
                self._connection.send("returned", round=self._round)
                self._give_up("the function has returned")
                _let_groups_go(destroys=True)
                return value  # type: ignore[no-any-return]  # the function's own
            held = self._leaving(error)
            del value, error  # with all that the frames hold
            self._get_ready(held)
            self._take(self._next_place())

    def _enter(self) -> None:
        self._stepped = self._told = False
        self._generation = groups.Generation()
        self._before = Before()
        self._hook = torch_state.exception_hook()
        self._grad_mode = torch_state.grad_mode()
        torch_state.wait_for_stores_in_python()
        loaders.end_quickly()
        self._set_phase(_Phase.RUNNING)
        self._connection.send("entered", round=self._round)

    def _leaving(self, error: BaseException | None) -> str:
        """Return the text of a peer's error that has left the function, or an empty text if the agent has asked first.

        Raises:
            BaseException: the error, if it is this worker's own, or the agent does not end the round.
        """
        if error is None:
            self._set_phase(_Phase.LEAVING)
            return ""
        text = collateral_text(error)
        held = text if self._leave is None else ""
        if held:
            self._set_phase(_Phase.HELD)
            self._connection.send("held", round=self._round, error=text)
            self._wait(lambda: self._leave is not None, self._timeout_s)
        if self._leave is None or not (text or is_round_over(error)):
            self._give_up(f"the function has failed: {type(error).__name__}")
            raise error
        self._set_phase(_Phase.LEAVING)
        clear_frames(error)
        return held

    def _get_ready(self, held: str) -> None:
        """End what belongs to the round, and report that the process has left it, or why it can't."""
        assert self._leave is not None
        asked_s, left_s = self._leave.at_s, time.monotonic()
        raised_s = self._interrupter.raised_s or left_s
        until_s = asked_s + self._leave.within_s
        if (states := sys.modules.get("elastic_warm.state")) is not None:
            states.forget_shards()
        while self._interrupter.is_held_elsewhere:  # that thread may need the groups
            self._pause(_LOOK_S[-1])
        with gloo_loops.woken(self._interrupter.own_signum):
            _let_groups_go(destroys=False)
            reason = self._generation.destroy(until_s - time.monotonic())
        torch_state.restore_exception_hook(self._hook)
        torch_state.restore_grad_mode(self._grad_mode)
        reason = reason or torch_state.device_fault() or self._remaining(until_s)
        if reason:
            self._stay(reason)
        flush_streams()
        with self._changed:
            self._phase = _Phase.KEPT
        self._connection.send(
            "left",
            round=self._round,
            ms={
                "interrupt": _ms(raised_s - asked_s),
                "function": _ms(left_s - raised_s),
                "groups": _ms(time.monotonic() - left_s),
            },
            held=held or None,
        )
        if states is not None:
            states.describe_commits()  # now, while nobody waits for this process

    def _remaining(self, until_s: float) -> str:
        """Wait until nothing of the round is left. Return what still is at the end of the time; empty if nothing is."""
        looks, slow = 0, False
        while remains := [*self._generation.remains(), *self._before.remains()]:
            if time.monotonic() >= until_s:
                return "; ".join(remains)
            looks += 1
            if looks == _COLLECT_AFTER:
                began_s = time.monotonic()
                torch_state.collect()
                slow = time.monotonic() - began_s > _SLOW_S
            self._pause(_LOOK_S[min(looks, len(_LOOK_S)) - 1])
        if looks >= _COLLECT_AFTER and slow and self._frozen < _MOST_FROZEN:
            self._frozen += 1
            torch_state.free_from_cycles()  # of the modules that the function has imported
        return ""

    def _stay(self, reason: str) -> None:
        """Report that the process can't be kept, and wait for the agent to end it.

        Raises:
            RoundOver: it does not.
        """
        self._give_up(reason)
        self._wait(lambda: False, self._timeout_s)
        raise RoundOver(f"the process can't be kept: {reason}")

    def _next_place(self) -> dict[str, Any]:
        """Wait for the place in the next round. End the process if there will be none."""
        self._wait(lambda: self._place is not None or self._ended or self._gone, None)
        if self._place is not None:
            return self._place
        if self._ended:
            raise SystemExit(0)
        os._exit(1)  # the agent is gone, and its guard ends all of its processes

    def _take(self, place: dict[str, Any]) -> None:
        """Put the process into its place: variables, streams, and the file for its error."""
        for name, value in place.get("variables", {}).items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        for name, fd in place["fds"].items():
            if name in _STREAMS:
                replace_stream(fd, _STREAMS[name])
            else:
                os.close(fd)
        if os.environ.get("ELASTIC_WORKER_HOOKS") in ("1", str(self._pid)):
            self._arm_worker()
        with self._changed:
            self._leave, self._place, self._presses = None, None, 0
            self._interrupter.renew()
            self._round = int(place["round"])
        self._connection.send("taken", round=self._round)
        early, self._early = self._early, None
        if early is not None:
            self._on_leave(early)

    def _give_up(self, reason: str) -> None:
        """Keep the process no more. If the agent has asked the worker to leave, report that it stays."""
        with self._changed:
            self._phase = _Phase.OVER
            is_asked = self._leave is not None
        if is_asked:
            self._connection.send("stays", round=self._round, reason=reason)

    def _set_phase(self, phase: _Phase) -> None:
        with self._changed:
            self._phase = phase

    def _wait(self, condition: Callable[[], bool], within_s: float | None) -> None:
        with self._changed:
            self._changed.wait_for(lambda: condition() or (within_s is not None and self._gone), within_s)

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait(seconds)

    # --- calls of the function

    def step(self) -> None:
        """Note that a step is complete, and leave the function here if its round is over."""
        if os.getpid() != self._pid or threading.current_thread() is not threading.main_thread():
            return
        self._note_step()
        self._interrupter.check()

    def _note_step(self) -> None:
        if not self._stepped and self._interrupter.running:
            self._stepped = True
            loaders.end_quickly()  # the function may have imported torch
            self._connection.send("stepped", round=self._round)

    def should_stop(self) -> bool:
        """Return whether the round is over. The function may return then, and is called again in the next round."""
        if os.getpid() != self._pid:
            return False
        self._note_step()
        self._told = self._leave is not None
        return self._told

    def protected(self) -> contextlib.AbstractContextManager[None]:
        """Return the context manager of `protected`."""
        return self._interrupter.protected() if os.getpid() == self._pid else contextlib.nullcontext()

    def report_state(self, **cost: float) -> None:
        """Report the cost of a commit, at most once a second."""
        now_s = time.monotonic()
        if os.getpid() == self._pid and now_s - self._state_s >= _STATE_S:
            self._state_s = now_s
            self._connection.send("state", **cost)

    # --- the thread that listens to the agent

    def _listen(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
        poll = select.poll()
        poll.register(self._connection.fileno(), select.POLLIN)
        while True:
            pause_s = _PRESS_S[min(self._presses, len(_PRESS_S)) - 1] if self._is_pressing() else None
            if poll.poll(None if pause_s is None else pause_s * 1000):
                try:
                    for message in self._connection.receive():
                        self._on_message(message)
                except (ConnectionOverError, TypeError, ValueError):
                    self._on_gone()
                    return
            if self._is_pressing():
                self._press()

    def _is_pressing(self) -> bool:
        return self._leave is not None and self._interrupter.running

    def _press(self) -> None:
        """Interrupt the main thread, and free the call in which it is blocked."""
        self._presses += 1
        self._interrupter.interrupt()
        if not self._interrupter.is_held:
            self._generation.abort_devices()
            self._generation.shut()

    def _on_message(self, message: dict[str, Any]) -> None:
        kind = message.get("kind")
        if kind == "leave":
            self._on_leave(message)
        elif kind == "place":
            with self._changed:
                self._place = message
                self._changed.notify_all()
        elif kind == "end":
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _on_leave(self, message: dict[str, Any]) -> None:
        with self._changed:
            if self._place is not None and message.get("round") == self._place.get("round"):
                self._early = message
                return
            if message.get("round") != self._round or self._leave is not None:
                return
            if self._phase is _Phase.OVER:
                self._connection.send("stays", round=self._round, reason="the function has ended")
                return
            if torch_state.has_device_group() and not _tries_devices():
                self._phase = _Phase.OVER
                reason = f"it has a process group of a device ({DEVICES_VARIABLE}=1 tries to keep it)"
                self._connection.send("stays", round=self._round, reason=reason)
                return
            within_s = float(message.get("within_s", self._timeout_s))
            self._leave = _Leave(within_s, time.monotonic())
            self._interrupter.want(within_s)
            self._changed.notify_all()

    def _on_gone(self) -> None:
        with self._changed:
            self._gone = True
            self._changed.notify_all()
        self._connection.close()


_kept: KeptWorker | None = None
_is_used = False
_groups: list[object] = []
"""References to the function's groups: the last one must not be that of an object in C++, such as the reducer of
DistributedDataParallel. Torch 2.13 then joins a thread of gloo that waits for the lock of the interpreter."""


def _let_groups_go(*, destroys: bool) -> None:
    """Release the groups of a function that was left; `destroys`: end those that it has not ended."""
    if destroys:
        transfers.wait()  # of the last commit, which other ranks wait for
        torch_state.destroy_groups()
    _groups.clear()


def _tries_devices() -> bool:
    return os.environ.get(DEVICES_VARIABLE) == "1"


def rounds(function: Callable[P, T]) -> Callable[P, T]:
    """Make a training function run once per round in the same process, if the launcher can keep the process.

    When a round ends, because a worker failed or a node joins, the function is left by `RoundOver`. Its process groups
    are destroyed. Once the process has its place in the next round, with the variables of that round, the function is
    called again, with the same arguments. The result of the last call is returned. Groups that the function has made
    are destroyed then, too.

    The function should make its process groups, and end the threads and processes that it starts when an exception
    leaves it. If it does not, or if the launcher keeps no workers, all is as without the decorator: the process ends,
    and another one is started.

    Called: once, in the main thread. Only the first such function of a process is kept over rounds.

    Raises:
        ConfigError: the function is a coroutine function or a generator function. Its call returns before it trains.
    """
    if getattr(getattr(function, "__code__", None), "co_flags", 0) & _LATER:
        from elastic_core.api import ConfigError  # imported now: it takes milliseconds

        name = getattr(function, "__name__", "it")
        raise ConfigError(
            f"elastic_warm.rounds: a call of {name!r} returns before it trains: it is `async def`, or has `yield`",
            hint="a function that calls it, with asyncio.run or in a loop",
        )

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        worker = _keep()
        if worker is not None:
            return worker.run(lambda: function(*args, **kwargs))
        destroys = not torch_state.has_groups()
        value = function(*args, **kwargs)
        _let_groups_go(destroys=destroys)
        return value

    return run


def protected() -> contextlib.AbstractContextManager[None]:
    """Return a context manager for a block that the end of a round does not interrupt, such as a save.

    The end waits for the block, for three quarters of `--warm-timeout` at most. Blocks may be nested. If another thread
    is in one, the main thread leaves the function, and the process groups stay until the block ends.

    Called: after the call of the function with `rounds`, in any thread. Otherwise, and in a forked child, the block has
    no effect.
    """
    return _kept.protected() if _kept is not None else contextlib.nullcontext()


def should_stop() -> bool:
    """Return whether the round is over, so that the function may return; it is called again in the next round.

    Most functions don't need it: `RoundOver` leaves them anyway. A first call also reports that the first step of a
    round is complete, as `State.commit` does. Before that, a process is not kept.
    """
    return _kept.should_stop() if _kept is not None else False


def stepped() -> None:
    """Report that a step is complete. Called: by `State.commit`, at its end.

    Raises:
        RoundOver: the round is over.
    """
    if _is_used and not _groups:
        _groups.extend(torch_state.groups())
    if _kept is not None:
        _kept.step()


def committed(*, ms: float, bytes: int, step: int) -> None:
    """Report the cost of a commit to the agent, at most once a second. Called: by `State.commit`.

    Args:
        ms: Its time in milliseconds.
        bytes: The size of what was copied.
        step: Its step.
    """
    if _kept is not None:
        _kept.report_state(commit_ms=ms, bytes=bytes, step=step)


def _keep() -> KeptWorker | None:
    """Return the kept worker at the first call. `None` if the process can't be kept, which a line explains."""
    global _kept, _is_used
    if _is_used:
        return None
    _is_used = True
    path = os.environ.get(SOCKET_VARIABLE, "")
    try:
        if not path:
            raise ValueError("its launcher keeps no workers, or begins no other round")
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("the function is not called in the main thread")
        connection = AgentConnection(path)
        try:
            _kept = KeptWorker(connection, _timeout_s())
        except BaseException:
            connection.close()
            raise
    except (OSError, ValueError) as error:
        if os.environ.get("RANK") == "0":
            print(f"elastic-warm: this process is not kept over rounds: {error}", file=sys.stderr, flush=True)  # noqa: T201
        return None
    return _kept


def _timeout_s() -> float:
    with contextlib.suppress(ValueError):
        return float(os.environ.get(TIMEOUT_VARIABLE) or DEFAULT_TIMEOUT_S)
    return DEFAULT_TIMEOUT_S


def _round() -> int:
    return int(os.environ.get("ELASTIC_ROUND") or 0)


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK") or 0)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 2)

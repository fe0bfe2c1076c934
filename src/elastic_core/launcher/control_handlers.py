"""What the agent's control plane can do. Handlers run on threads of their own; what they need, the loop tells them."""

import math
import signal
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, TypeVar

from elastic_core.agent.watch.beat_file import MAX_STACKS_BYTES
from elastic_core.control_plane.agent_server import LoopCall
from elastic_core.control_plane.client import AnswerTooLongError, call
from elastic_core.control_plane.handlers import JSON, TEXT, Handler, Request, Response
from elastic_core.encoding import encode_json
from elastic_core.messages import RestartRequested, StopRequested
from elastic_core.reports import WorkerStack
from elastic_core.types import Record

if TYPE_CHECKING:
    from elastic_core.launcher.control import AgentControl
    from elastic_core.status import AgentStatus

ANSWER_S: Final = 5.0
"""How long the loop may take to answer a question about itself."""
STACKS_S: Final = 20.0
_WORKER_S: Final = 2.0
_REASON_CHARS: Final = 200
_OVER: Final = ("leaving", "ended")
AGENT_HANDLERS: Final = ("drain", "metrics", "ping", "restart", "stacks", "state", "store", "workers")
"""All of them: methods of `AgentHandlers`, whose first lines the docs show."""

_T = TypeVar("_T")


class WorkerState(Record, frozen=True, kw_only=True):
    """One worker, as `workers` tells of it. `uptime_s` is None once it has ended; paths are empty where there is none.

    `state`: `alive`, `done` (it ended well by itself), or `ended`. `control`: where its own server would be.
    """

    local_rank: int
    global_rank: int
    pid: int
    state: str
    alive: bool
    uptime_s: float | None
    stdout: str = ""
    stderr: str = ""
    error_file: str = ""
    control: str = ""


class WorkersDocument(Record, frozen=True, kw_only=True):
    """What `workers` answers."""

    workers: tuple[WorkerState, ...]


class FewNumbers(Record, frozen=True, kw_only=True):
    """What `metrics` answers where nobody collects any; `round` is -1 before the first."""

    round: int
    restart_count: int
    membership_changes: int
    workers: int
    workers_alive: int


class RefusedError(Exception):
    """What was asked can't be done now; `status` is HTTP's."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class AgentHandlers:
    """The handlers of one agent."""

    title = "elastic_core.Agent"

    def __init__(self, control: "AgentControl") -> None:
        """Take what is known."""
        self._control = control
        self._handlers: dict[str, Handler] = {name: getattr(self, name) for name in AGENT_HANDLERS}

    def names(self) -> tuple[str, ...]:
        """Return all names, sorted."""
        return tuple(sorted(self._handlers))

    def find(self, name: str) -> Handler | None:
        """Return one handler; refusals become answers."""
        handler = self._handlers.get(name)
        if handler is None:
            return None

        def refusing(request: Request, response: Response) -> None:
            try:
                handler(request, response)
            except RefusedError as refusal:
                response.set_status(refusal.status)
                response.set_content(str(refusal), TEXT)

        return refusing

    def _ask(self, question: Callable[[], _T]) -> _T:
        """Ask the loop something that it knows at once."""
        answer: LoopCall[_T] = LoopCall(self._control.reactor.post)
        return answer.ask(lambda give: give(question()), within_s=ANSWER_S)

    # --- what is

    def ping(self, request: Request, response: Response) -> None:
        """Answer `pong`: the agent's loop turns."""
        response.set_content(self._ask(lambda: "pong"), TEXT)

    def state(self, request: Request, response: Response) -> None:
        """Answer with what `status.json` would say now, as JSON."""
        response.set_content(encode_json(self._ask(self._control.status.now)), JSON)

    def workers(self, request: Request, response: Response) -> None:
        """Answer with this node's workers, as JSON: ranks, pid, state, uptime, paths of logs and socket."""
        response.set_content(encode_json(WorkersDocument(workers=self._ask(self._workers_now))), JSON)

    def _workers_now(self) -> tuple[WorkerState, ...]:
        control = self._control
        launches = {launch.local_rank: launch for launch in control.launches}
        uptime_s = round(control.reactor.now_s() - control.planned_s, 3)
        found = []
        for worker in control.status.now().workers:
            launch = launches.get(worker.local_rank)
            alive = worker.state == "alive"
            found.append(
                WorkerState(
                    local_rank=worker.local_rank,
                    global_rank=worker.global_rank,
                    pid=worker.pid,
                    state=worker.state,
                    alive=alive,
                    uptime_s=uptime_s if alive else None,
                    stdout="" if launch is None else launch.stdout.file or "",
                    stderr="" if launch is None else launch.stderr.file or "",
                    error_file="" if launch is None else launch.env.get("TORCHELASTIC_ERROR_FILE", ""),
                    control="" if launch is None else launch.env.get("TORCH_WORKER_SERVER_SOCKET", ""),
                )
            )
        return tuple(found)

    def metrics(self, request: Request, response: Response) -> None:
        """Answer with the metrics as Prometheus reads them with `--metrics-port`, else with a few numbers as JSON."""
        source = self._control.metrics
        if source is not None:
            response.set_content(*source())
            return
        status = self._ask(self._control.status.now)
        numbers = FewNumbers(
            round=-1 if status.round is None else status.round.index,
            restart_count=status.restart_count,
            membership_changes=status.membership_changes,
            workers=len(status.workers),
            workers_alive=sum(worker.state == "alive" for worker in status.workers),
        )
        response.set_content(encode_json(numbers), JSON)

    # --- stacks

    def stacks(self, request: Request, response: Response) -> None:
        """Answer with the Python stacks of this node's workers; parameter `rank`: of that global rank alone."""
        only = request.get_param("rank")
        ranks = {worker.local_rank: worker for worker in self._ask(self._workers_now) if worker.alive}
        if only:
            ranks = {local: worker for local, worker in ranks.items() if str(worker.global_rank) == only}
        if not ranks:
            which = f"no worker with global rank {only!r} runs on this node" if only else "no worker of this node runs"
            raise RefusedError(HTTPStatus.CONFLICT, which)
        found = self._stacks_of(frozenset(ranks))
        parts = [self._stack_text(worker, found.get(local, WorkerStack())) for local, worker in sorted(ranks.items())]
        response.set_content("\n".join(parts), TEXT)

    def _stacks_of(self, ranks: frozenset[int]) -> Mapping[int, WorkerStack]:
        control = self._control
        answer: LoopCall[Mapping[int, WorkerStack]] = LoopCall(control.reactor.post)
        return answer.ask(lambda give: control.stacks.take(give, ranks=ranks), within_s=STACKS_S)

    def _stack_text(self, worker: WorkerState, stacks: WorkerStack) -> str:
        head = f"rank {worker.global_rank} (local rank {worker.local_rank}, pid {worker.pid})"
        text, source = stacks.text, stacks.source
        if not text:
            text, source = self._from_worker(worker), "its own server"
        if not text:
            return (
                f"{head}: it does not answer (no Python, stopped, or with --no-worker-hooks). Try: py-spy installed "
                "beside elastic-core\n"
            )
        return f"{head}, {source}:\n{text.rstrip()}\n"

    def _from_worker(self, worker: WorkerState) -> str:
        try:
            reply = call(worker.control, "dump_traceback", timeout_s=_WORKER_S, longest=MAX_STACKS_BYTES)
        except AnswerTooLongError as err:
            return f"left out: {err}"
        except Exception:  # noqa: BLE001  # no server, or one that does not answer: there is nothing to be had
            return ""
        return reply.text if reply.ok else ""

    # --- what changes something

    def drain(self, request: Request, response: Response) -> None:
        """Stop this node's workers and leave the run, as at SIGTERM; parameter `deadline`: at most so many seconds."""
        control = self._control
        grace_s = _deadline_s(request.get_param("deadline"))
        status = self._ask(control.status.now)
        if status.state in _OVER:
            raise RefusedError(HTTPStatus.CONFLICT, "the agent is ending already")
        longest_s = control.settings.stops.shutdown_timeout_s
        at_most_s = longest_s if grace_s is None else min(grace_s, longest_s)
        alive = sum(worker.state == "alive" for worker in status.workers)
        count = "1 worker" if alive == 1 else f"{alive} workers"
        response.set_content(f"draining node {status.node_id}: {count} to stop, at most {at_most_s:g} s", TEXT)
        stop = StopRequested(signum=signal.SIGTERM, grace_s=grace_s)
        response.afterwards(lambda: control.reactor.post(lambda: control.agent.dispatch(stop)))

    def restart(self, request: Request, response: Response) -> None:
        """Start all workers of the run again, in a new round; no budget is spent. Parameter `reason`: why."""
        control = self._control
        status = self._ask(control.status.now)
        self._check_restart(status)
        assert status.round is not None
        why = " ".join(request.get_param("reason").split())[:_REASON_CHARS]
        reason = f"a restart was asked for on node {status.node_id}" + (f" ({why})" if why else "")
        response.set_content(f"round {status.round.index} ends; all workers of the run are started again", TEXT)
        asked = RestartRequested(reason=reason)
        response.afterwards(lambda: control.reactor.post(lambda: control.agent.dispatch(asked)))

    def _check_restart(self, status: "AgentStatus") -> None:
        if status.state != "running" or status.round is None:
            raise RefusedError(HTTPStatus.CONFLICT, f"no round runs now: the agent is {status.state} ({status.reason})")
        if not any(worker.state == "alive" for worker in status.workers):
            raise RefusedError(HTTPStatus.CONFLICT, "all workers of this node have finished")
        if status.round.node_count > 1 and not self._control.rendezvous.takes_requests:
            text = f"backend {status.backend!r} can't tell the other nodes. Try: a run on redis, etcd or c10d"
            raise RefusedError(HTTPStatus.CONFLICT, text)

    def store(self, request: Request, response: Response) -> None:
        """Open the workers' store beside this agent, as `--agent-store` does. Called by rank 0 when it finds none."""
        refusal = self._ask(self._control.open_store)
        if refusal:
            raise RefusedError(HTTPStatus.CONFLICT, refusal)
        response.set_content("a store is opened at MASTER_PORT", TEXT)


def _deadline_s(text: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"deadline={text!r}: needed seconds, 0 or more")
    return value

"""The handlers of the agent's control plane. They run on threads of their own, and use the run's handle."""

import threading
from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from typing import Final, Generic, TypeVar

from elastic_core.api import (
    ConfigError,
    ElasticError,
    HookSettings,
    Record,
    RunHandle,
    decode_json,
    duration_s,
    encode_json,
)
from elastic_core.api.stores import WaitExpiredError
from elastic_ops.control_plane.client import AnswerTooLongError, call
from elastic_ops.control_plane.handlers import JSON, TEXT, Handler, Offer, Request, Response
from elastic_ops.node_workers import WorkersDocument, WorkerState
from elastic_ops.status.document import AgentStatus
from elastic_ops.status.recorder import STATE

ANSWER_S: Final = 5.0
"""How long the agent may take to return data about itself."""
_WORKER_S: Final = 2.0
_REASON_CHARS: Final = 200
_LONGEST_STACKS: Final = 1 << 20
_OVER: Final = ("leaving", "ended")
AGENT_HANDLERS: Final = ("drain", "metrics", "ping", "restart", "stacks", "workers")
"""All handlers except those that hooks offer: methods of `AgentHandlers`. The docs show their first lines."""

_T = TypeVar("_T")


class FewNumbers(Record, frozen=True, kw_only=True):
    """The response of `metrics` if no metrics are collected; `round` is -1 before the first round."""

    round: int
    restart_count: int
    membership_changes: int
    workers: int
    workers_alive: int


class Stack(Record, frozen=True, kw_only=True):
    """The Python stacks of one worker, from elastic-watch."""

    text: str = ""
    source: str = ""


class Stacks(Record, frozen=True, kw_only=True):
    """The response of elastic-watch's hook, by local rank."""

    workers: Mapping[int, Stack] = {}


class RefusedError(Exception):
    """The request can't be done now; `status` is the HTTP status."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


class Question(Generic[_T]):
    """A request that another thread answers."""

    def __init__(self) -> None:
        """Begin without a result."""
        self._answered = threading.Event()
        self._value: _T

    def answer(self, value: _T) -> None:
        """Set the result. Called: once."""
        self._value = value
        self._answered.set()

    def wait(self, within_s: float) -> _T:
        """Return the result.

        Raises:
            WaitExpiredError: there was none in time.
        """
        if not self._answered.wait(within_s):
            raise WaitExpiredError(f"the agent's loop has not answered within {within_s:g} s")
        return self._value


class AgentHandlers(Offer):
    """The handlers of one agent, and those that its hooks offer.

    Args:
        run: The run's handle.
        settings: The hook's.
        details: Returns data about this node's started workers, in addition to their status.
    """

    title = "elastic_core.Agent"

    def __init__(
        self,
        run: RunHandle,
        settings: HookSettings,
        *,
        details: Callable[[AgentStatus], tuple[WorkerState, ...]],
    ) -> None:
        """Take what is known."""
        self._run = run
        self._settings = settings
        self._details = details
        self._drained = False
        self._handlers: dict[str, Handler] = {name: getattr(self, name) for name in AGENT_HANDLERS}

    def names(self) -> tuple[str, ...]:
        """Return all names, sorted."""
        return tuple(sorted({*self._handlers, *self._run.offers()}))

    def find(self, name: str) -> Handler | None:
        """Return a handler. Its rejections become responses."""
        handler = self._handlers.get(name)
        if handler is None and name not in self._run.offers():
            return None

        def refusing(request: Request, response: Response) -> None:
            try:
                if handler is None:
                    self._offered(name, request, response)
                else:
                    handler(request, response)
            except RefusedError as refusal:
                response.set_status(refusal.status)
                response.set_content(str(refusal), TEXT)

        return refusing

    def _offered(self, name: str, request: Request, response: Response) -> None:
        try:
            answer = self._run.offers()[name](request.params())
        except ElasticError as err:
            status = HTTPStatus.BAD_REQUEST if isinstance(err, ConfigError) else HTTPStatus.CONFLICT
            raise RefusedError(status, str(err)) from err
        response.set_content(answer.content, answer.content_type)

    def _status(self) -> AgentStatus:
        """Return the status from the recorder, if the agent's loop responds."""
        question: Question[None] = Question()
        self._run.call_later(0.0, lambda: question.answer(None))
        question.wait(ANSWER_S)
        offer = self._run.offers().get(STATE)
        if offer is None:
            raise RefusedError(HTTPStatus.CONFLICT, "this agent has no status: its hook 'recorder' was left out")
        return decode_json(offer({}).content, AgentStatus)

    # --- what is

    def ping(self, request: Request, response: Response) -> None:
        """Return `pong` if the agent's loop responds."""
        self._status()
        response.set_content("pong", TEXT)

    def workers(self, request: Request, response: Response) -> None:
        """Return this node's workers as JSON: ranks, pid, state, uptime, paths of logs and socket."""
        response.set_content(encode_json(WorkersDocument(workers=self._details(self._status()))), JSON)

    def metrics(self, request: Request, response: Response) -> None:
        """Return the metrics in Prometheus format with `--metrics-port`, else a few numbers as JSON."""
        if "metrics" in self._run.offers():
            self._offered("metrics", request, response)
            return
        status = self._status()
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
        """Return the Python stacks of this node's workers. Parameter `rank`: only of that global rank."""
        only = request.get_param("rank")
        ranks = {worker.local_rank: worker for worker in self._details(self._status()) if worker.alive}
        if only:
            ranks = {local: worker for local, worker in ranks.items() if str(worker.global_rank) == only}
        if not ranks:
            which = f"no worker with global rank {only!r} runs on this node" if only else "no worker of this node runs"
            raise RefusedError(HTTPStatus.CONFLICT, which)
        found = self._taken(ranks)
        parts = [self._stack_text(worker, found.get(local, Stack())) for local, worker in sorted(ranks.items())]
        response.set_content("\n".join(parts), TEXT)

    def _taken(self, ranks: Collection[int]) -> Mapping[int, Stack]:
        """Return the stacks of these local ranks from elastic-watch; empty without elastic-watch."""
        offer = self._run.offers().get("stacks")
        return {} if offer is None else decode_json(offer({"ranks": ",".join(map(str, ranks))}).content, Stacks).workers

    def _stack_text(self, worker: WorkerState, stacks: Stack) -> str:
        head = f"rank {worker.global_rank} (local rank {worker.local_rank}, pid {worker.pid})"
        text, source = stacks.text, stacks.source
        if not text:
            text, source = self._from_worker(worker), "its own server"
        if not text and "stacks" not in self._run.offers():
            return f"{head}: stacks come with elastic-watch. Try: pip install . ./plugins/watch, in a checkout\n"
        if not text:
            return (
                f"{head}: it does not answer (no Python, stopped, or with --no-worker-hooks). Try: py-spy installed "
                "beside elastic-core\n"
            )
        return f"{head}, {source}:\n{text.rstrip()}\n"

    def _from_worker(self, worker: WorkerState) -> str:
        try:
            reply = call(worker.control, "dump_traceback", timeout_s=_WORKER_S, longest=_LONGEST_STACKS)
        except AnswerTooLongError as err:
            return f"left out: {err}"
        except Exception:  # noqa: BLE001  # no server, or one that does not answer: there is nothing to be had
            return ""
        return reply.text if reply.ok else ""

    # --- what changes something

    def drain(self, request: Request, response: Response) -> None:
        """Stop this node's workers and leave the run, as at SIGTERM. Parameter `deadline`: seconds, at most."""
        grace_s = _deadline_s(request.get_param("deadline"))
        status = self._status()
        if self._drained and grace_s is None and request.get_param("once"):
            response.set_content(f"node {status.node_id} is being drained already", TEXT)
            return
        self._drained = True
        if status.state in _OVER:
            raise RefusedError(HTTPStatus.CONFLICT, "the agent is ending already")
        longest_s = self._settings.shutdown_timeout_s
        at_most_s = longest_s if grace_s is None else min(grace_s, longest_s)
        alive = sum(worker.state == "alive" for worker in status.workers)
        count = "1 worker" if alive == 1 else f"{alive} workers"
        response.set_content(f"draining node {status.node_id}: {count} to stop, at most {at_most_s:g} s", TEXT)
        response.afterwards(lambda: self._run.ask_drain("", grace_s=grace_s, by_user=True))

    def restart(self, request: Request, response: Response) -> None:
        """Restart all workers in a new round, without using up a restart. Parameter `reason`: text for people."""
        status = self._status()
        self._check_restart(status)
        assert status.round is not None
        why = " ".join(request.get_param("reason").split())[:_REASON_CHARS]
        response.set_content(f"round {status.round.index} ends; all workers of the run are started again", TEXT)
        response.afterwards(lambda: self._run.ask_restart(why, by_user=True))

    def _check_restart(self, status: AgentStatus) -> None:
        if status.state != "running" or status.round is None:
            raise RefusedError(HTTPStatus.CONFLICT, f"no round runs now: the agent is {status.state} ({status.reason})")
        if not any(worker.state == "alive" for worker in status.workers):
            raise RefusedError(HTTPStatus.CONFLICT, "all workers of this node have finished")
        if status.round.node_count > 1 and not self._settings.restarts_nodes:
            text = f"backend {status.backend!r} can't tell the other nodes. Try: a run on redis, etcd or c10d"
            raise RefusedError(HTTPStatus.CONFLICT, text)


def _deadline_s(text: str) -> float | None:
    if not text:
        return None
    value = duration_s(text)
    if value is None:
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"deadline: {text!r}; expected seconds, 0 or more, or 30s, 5m")
    return value

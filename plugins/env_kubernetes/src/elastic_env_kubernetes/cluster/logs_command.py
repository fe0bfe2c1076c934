"""`elastic k8s logs`: print the output of one or all of a run's pods."""

import sys
import threading
from typing import Final

import click
import httpx2
from lightkube import Client

from elastic_core.api import ConfigError
from elastic_core.api.commands import echo
from elastic_env_kubernetes.cluster.connection import CONTEXT, NAMESPACE, connected, name_argument, refusal
from elastic_env_kubernetes.cluster.found_run import PENDING, PodState, find, newest
from elastic_env_kubernetes.manifests.pod_template import CONTAINER

_LOOK_S: Final = 2.0
"""The interval in which `--follow` looks for new pods."""


def _logs(
    name: str, context: str | None, namespace: str | None, index: tuple[int, ...], follow: bool, tail: int | None
) -> None:
    with connected(context, namespace) as client:
        run = find(client, name)
        chosen = [pod for key, pod in newest(run.pods).items() if not index or key in index]
        begun = [pod for pod in chosen if pod.phase != PENDING]
        if not begun and not follow:
            known = ", ".join(f"{pod.name} ({pod.reason or pod.phase})" for pod in chosen) or "there is none"
            raise ConfigError(f"no pod of {name!r} has started yet: {known}", hint=f"elastic k8s status {name}")
        if follow:
            _Followed(client, name, index, tail).run()
            return
        for pod in begun:
            _print(client, pod.name, _prefix(pod, alone=len(chosen) == 1), tail, follow=False)


def _prefix(pod: PodState, *, alone: bool) -> str:
    return "" if alone else f"[{pod.name if pod.index is None else pod.index}] "


def _print(client: Client, pod: str, prefix: str, tail: int | None, *, follow: bool) -> None:
    """Print a pod's output, or why there is none: it may be gone, or have ended before its container began."""
    try:
        for line in client.log(pod, container=CONTAINER, follow=follow, tail_lines=tail, newlines=False):
            echo(prefix + line)
            if follow:
                sys.stdout.flush()  # also where it goes into a pipe
    except httpx2.HTTPStatusError as err:
        echo(f"elastic: the output of pod {pod}: {refusal(err, str(client.config.cluster.server))}", err=True)


class _Followed:
    """The output of all pods of a run until its end, each followed on a thread of its own."""

    def __init__(self, client: Client, name: str, index: tuple[int, ...], tail: int | None) -> None:
        self._client = client
        self._name = name
        self._index = index
        self._tail = tail
        self._threads: dict[str, threading.Thread] = {}
        self._ended = threading.Event()

    def run(self) -> None:
        """Print until the run has ended and all of its pods' output is printed."""
        while True:
            found = find(self._client, self._name)
            for pod in found.pods:
                if pod.phase != PENDING and pod.name not in self._threads and self._is_chosen(pod):
                    self._follow(pod, alone=found.pods_wanted == 1 or len(self._index) == 1)
            if found.state in ("done", "failed"):
                break
            self._ended.wait(_LOOK_S)  # or until a pod's output ends, after which another one may begin
            self._ended.clear()
        for thread in self._threads.values():
            thread.join()

    def _is_chosen(self, pod: PodState) -> bool:
        return not self._index or pod.index in self._index

    def _follow(self, pod: PodState, *, alone: bool) -> None:
        prefix = _prefix(pod, alone=alone)
        thread = threading.Thread(target=self._print, args=(pod.name, prefix), name=pod.name, daemon=True)
        self._threads[pod.name] = thread
        thread.start()

    def _print(self, pod: str, prefix: str) -> None:
        try:
            _print(self._client, pod, prefix, self._tail, follow=True)
        except httpx2.TransportError:  # a pod that is gone takes its stream with it; the next look says what is there
            pass
        finally:
            self._ended.set()


command = click.Command(
    "logs",
    callback=_logs,
    params=[
        name_argument(),
        click.Option(
            ["--index"],
            metavar="N",
            type=click.IntRange(min=0),
            multiple=True,
            help="Only this pod, by index (repeatable).",
        ),
        click.Option(
            ["--follow", "-f"], is_flag=True, help="Show new lines until the run ends, also of pods that start later."
        ),
        click.Option(["--tail"], metavar="N", type=click.IntRange(min=0), help="Only the last N lines of each pod."),
        CONTEXT,
        NAMESPACE,
    ],
    help="Show the logs of the pods of run NAME, of the newest pod of each index. With several pods, each line "
    "begins with the pod's index.",
    epilog="Exit codes: 0; 1 the API server cannot be reached, or rejects the request; 2 usage, or no such run.",
)

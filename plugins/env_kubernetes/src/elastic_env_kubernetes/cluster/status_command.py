"""`elastic k8s status`: show the state of a run and its pods."""

import click

from elastic_core.api.commands import echo, echo_json
from elastic_env_kubernetes.cluster.connection import CONTEXT, NAMESPACE, connected, name_argument
from elastic_env_kubernetes.cluster.found_run import FoundRun, PodState, find


def _status(name: str, context: str | None, namespace: str | None, as_json: bool) -> None:
    with connected(context, namespace) as client:
        run = find(client, name)
    if as_json:
        echo_json(run)
        return
    echo(_headline(run))
    rows = [("pod", "name", "state", "node"), *map(_row, run.pods)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows if run.pods else ():
        echo("  ".join(text.ljust(width) for text, width in zip(row, (*widths, 0), strict=True)).rstrip())


def _headline(run: FoundRun) -> str:
    running = sum(pod.phase == "Running" for pod in run.pods)
    restarts = f", {run.restarts} restarts" if run.restarts else ""
    reason = f" ({run.reason})" if run.reason else ""
    return (
        f"{run.kind} {run.name} in {run.namespace}: {run.state}{reason}, {running} of {run.pods_wanted} pods running"
        f"{restarts}; run id {run.run_id}"
    )


def _row(pod: PodState) -> tuple[str, str, str, str]:
    code = "" if pod.exit_code is None else f" {pod.exit_code}"
    reason = f" ({pod.reason}{code})" if pod.reason or code else ""
    message = f": {pod.message}" if pod.message else ""
    index = "" if pod.index is None else str(pod.index)
    return index, pod.name, f"{pod.phase}{reason}{message}", pod.node


command = click.Command(
    "status",
    callback=_status,
    params=[
        name_argument(),
        CONTEXT,
        NAMESPACE,
        click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object."),
    ],
    help="Show the state of run NAME and its pods: the result of the Job or JobSet, and the state, exit code and last "
    "line of each pod.",
    epilog="Exit codes: 0; 1 the API server cannot be reached, or rejects the request; 2 usage, or no such run.",
)

"""A run in the API server: its Job or JobSet, and its pods."""

from collections.abc import Sequence
from typing import Any, Final

import httpx2
from lightkube import Client
from lightkube.models.core_v1 import ContainerStatus
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Pod

from elastic_core.api import ConfigError, Record
from elastic_env_kubernetes.cluster.connection import is_missing
from elastic_env_kubernetes.manifests.kinds import JobSet
from elastic_env_kubernetes.manifests.pod_template import CONTAINER

MANAGED: Final = {"app.kubernetes.io/managed-by": "elastic-k8s"}
_INDEX: Final = "batch.kubernetes.io/job-completion-index"
_UID_SHOWN: Final = 8
_ENDED: Final = {"Complete": "done", "Completed": "done", "Failed": "failed"}
PENDING: Final = "Pending"


class PodState(Record, frozen=True, kw_only=True):
    """A pod for people. `exit_code` is null if it has none; `message`: the last line of its termination message."""

    index: int | None
    name: str
    phase: str
    reason: str
    exit_code: int | None
    node: str
    message: str
    created: str


class FoundRun(Record, frozen=True, kw_only=True):
    """A run. `state` is running, suspended, done or failed; `restarts` is null for a Job."""

    kind: str
    name: str
    namespace: str
    run_id: str
    state: str
    reason: str
    pods_wanted: int
    restarts: int | None
    pods: tuple[PodState, ...]


def owner_of(client: Client, name: str) -> Any:  # noqa: ANN401 - a Job, or what lightkube makes of a JobSet
    """Return the Job or the JobSet of a run.

    Raises:
        ConfigError: there is neither.
    """
    for kind in (Job, JobSet):
        found = present(client, kind, name)
        if found is not None:
            return found
    raise ConfigError(
        f"no Job and no JobSet {name!r} in namespace {client.namespace!r}", hint="--namespace, or elastic k8s apply"
    )


def present(client: Client, kind: Any, name: str) -> Any:  # noqa: ANN401 - kinds of lightkube
    """Return an object. `None` if the object or its kind does not exist."""
    try:
        return client.get(kind, name)
    except httpx2.HTTPStatusError as err:
        if is_missing(err):
            return None
        raise


def labels_of(name: str) -> dict[str, Any]:
    """Return the labels of all objects of a run."""
    return {"app.kubernetes.io/instance": name, **MANAGED}


def find(client: Client, name: str) -> FoundRun:
    """Return a run and its pods.

    Raises:
        ConfigError: there is none of this name.
    """
    owner = owner_of(client, name)
    document = owner.to_dict()
    spec, status = document.get("spec", {}), document.get("status", {})
    is_set = document["kind"] == "JobSet"
    job_spec = spec["replicatedJobs"][0]["template"]["spec"] if is_set else spec
    state, reason = _state(status.get("conditions") or (), suspended=bool(spec.get("suspend")))
    return FoundRun(
        kind=document["kind"],
        name=name,
        namespace=client.namespace,
        run_id=f"{name}-{document['metadata'].get('uid', '')[:_UID_SHOWN]}",
        state=state,
        reason=reason,
        pods_wanted=job_spec.get("completions", 1),
        restarts=status.get("restarts", 0) if is_set else None,
        pods=pods_of(client, name),
    )


def pods_of(client: Client, name: str) -> tuple[PodState, ...]:
    """Return a run's pods by index, the oldest of each first."""
    states = map(_pod_state, client.list(Pod, labels=labels_of(name)))
    return tuple(sorted(states, key=lambda each: (each.index is None, each.index or 0, each.created, each.name)))


def newest(pods: Sequence[PodState]) -> dict[int | None, PodState]:
    """Return the last pod of each index."""
    return {each.index: each for each in pods}


def _state(conditions: Sequence[dict[str, Any]], *, suspended: bool) -> tuple[str, str]:
    for condition in conditions:
        if condition.get("status") == "True" and condition.get("type") in _ENDED:
            words = (condition.get("reason", ""), condition.get("message", ""))
            return _ENDED[condition["type"]], ": ".join(filter(None, words))
    return ("suspended", "") if suspended else ("running", "")


def _pod_state(pod: Pod) -> PodState:
    metadata, status, spec = pod.metadata, pod.status, pod.spec
    marks = {**((metadata and metadata.annotations) or {}), **((metadata and metadata.labels) or {})}
    index = str(marks.get(_INDEX, ""))
    ours = (
        each for each in (status and status.containerStatuses) or () if each.name == CONTAINER
    )  # a mesh adds its own
    container = next(ours, None)
    reason, exit_code, message = _container_state(container) if container else ("", None, "")
    return PodState(
        index=int(index) if index.isdecimal() else None,
        name=(metadata and metadata.name) or "",
        phase="Terminating" if metadata and metadata.deletionTimestamp else (status and status.phase) or PENDING,
        reason=reason or (status and status.reason) or "",
        exit_code=exit_code,
        node=(spec and spec.nodeName) or "",
        message=message,
        created=str((metadata and metadata.creationTimestamp) or ""),
    )


def _container_state(container: ContainerStatus) -> tuple[str, int | None, str]:
    """Return why a container waits or how it ended, its exit code, and the last line of its termination message."""
    state = container.state
    if state and state.terminated:
        lines = (state.terminated.message or "").strip().splitlines()
        return state.terminated.reason or "", state.terminated.exitCode, lines[-1] if lines else ""
    if state and state.waiting:
        return state.waiting.reason or "", None, state.waiting.message or ""
    return "", None, ""

"""The objects of a run: its pods' controller, its Services, and its monitoring."""

from collections.abc import Iterator
from typing import Any

from lightkube.models.batch_v1 import (
    JobSpec,
    JobTemplateSpec,
    PodFailurePolicy,
    PodFailurePolicyOnExitCodesRequirement,
    PodFailurePolicyOnPodConditionsPattern,
    PodFailurePolicyRule,
    SuccessPolicy,
    SuccessPolicyRule,
)
from lightkube.models.core_v1 import ServicePort, ServiceSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import Service

from elastic_core.api import ConfigError, PluginError
from elastic_env_kubernetes.manifests.kinds import (
    FailureRule,
    JobSet,
    JobSetFailurePolicy,
    JobSetSpec,
    MetricsEndpoint,
    Network,
    ReplicatedJob,
    Selector,
    ServiceMonitor,
    ServiceMonitorSpec,
    extended,
)
from elastic_env_kubernetes.manifests.pod_template import CONTAINER, labels, pod_template
from elastic_env_kubernetes.manifests.run import NODES, Kind, Run
from elastic_env_kubernetes.variables import PORT

_QUEUE = "kueue.x-k8s.io/queue-name"
_LEAST_PODS = "kueue.x-k8s.io/job-min-parallelism"
_SAME_COMPLETIONS = "kueue.x-k8s.io/job-completions-equal-parallelism"
_METRICS = "metrics"
_LOST_STORES = 3
"""How often pod 0 may be lost with its store, or a run may fail for good, before its Job fails."""


def objects(run: Run) -> list[Any]:
    """Return a run's objects, resources of lightkube, in the order in which they are applied."""
    return [*_services(run), _job(run) if run.kind is Kind.JOB else _jobset(run)]


def documents(run: Run) -> list[dict[str, Any]]:
    """Return a run's objects in the API's form."""
    found = []
    for each in objects(run):
        content = each.to_dict()
        head = {key: content.pop(key) for key in ("apiVersion", "kind", "metadata")}
        found.append(head | content)
    return found


# --- what makes the pods


def _job(run: Run) -> Job:
    return Job(metadata=_metadata(run, queue=True), spec=_job_spec(run))


def _job_spec(run: Run) -> JobSpec:
    return JobSpec(
        completionMode="Indexed",
        completions=run.pods,
        parallelism=run.pods,
        backoffLimit=_backoff_limit(run),
        podFailurePolicy=_pod_failure_policy(),
        successPolicy=_success_policy(run),
        template=pod_template(run),
    )


def _backoff_limit(run: Run) -> int:
    """Return how many pods may fail. Disruptions and restarts of workers are not counted.

    If a run fails for good, each pod has failed; if pod 0 is lost with the store, all others have. A JobSet begins such
    a run again at once; a Job does so pod by pod.
    """
    if run.backoff_limit is not None:
        return run.backoff_limit
    return run.pods - 1 if run.kind is Kind.JOBSET else run.pods * _LOST_STORES


def _pod_failure_policy() -> PodFailurePolicy:
    """Return the action for a pod's end, by the exit codes of `elastic run`; the first matching rule counts."""
    disrupted = PodFailurePolicyRule(
        action="Ignore",  # a drain, an eviction, a preemption, a lost node: its code, 143 mostly, says nothing
        onPodConditions=[PodFailurePolicyOnPodConditionsPattern(type="DisruptionTarget", status="True")],
    )
    hopeless = PodFailurePolicyRule(
        action="FailJob",
        onExitCodes=PodFailurePolicyOnExitCodesRequirement(
            containerName=CONTAINER,
            operator="In",
            values=[ConfigError.exit_code, PluginError.exit_code],  # the next pod would end the same
        ),
    )
    return PodFailurePolicy(rules=[disrupted, hopeless])


def _success_policy(run: Run) -> SuccessPolicy | None:
    """Return the policy by which a successful run does not wait for pods without a place.

    `None` if it needs all pods.
    """
    if run.min_nodes == run.pods:
        return None
    return SuccessPolicy(rules=[SuccessPolicyRule(succeededCount=run.min_nodes)])


def _jobset(run: Run) -> Any:  # noqa: ANN401 - a class that lightkube makes
    template = JobTemplateSpec(metadata=ObjectMeta(labels=labels(run)), spec=_job_spec(run))
    spec = JobSetSpec(
        replicatedJobs=[ReplicatedJob(name=NODES, template=template, replicas=1)],
        network=Network(enableDNSHostnames=True, publishNotReadyAddresses=True),
        failurePolicy=JobSetFailurePolicy(
            maxRestarts=run.restarts,
            rules=[FailureRule(name="hopeless", action="FailJobSet", onJobFailureReasons=["PodFailurePolicy"])],
        ),
    )
    return extended(JobSet, _metadata(run, queue=True), spec)


# --- how pods are found


def _services(run: Run) -> Iterator[Any]:
    if run.kind is Kind.JOB and run.several:  # a JobSet's controller makes it
        yield _headless(run, ServicePort(name="rendezvous", port=PORT), early=True)
    if run.metrics_port:
        ours = labels(run) | {"app.kubernetes.io/component": _METRICS}
        yield _headless(run, ServicePort(name=_METRICS, port=run.metrics_port), f"-{_METRICS}", ours)
        spec = ServiceMonitorSpec(
            selector=Selector(matchLabels=ours),
            endpoints=[MetricsEndpoint(port=_METRICS, path="/metrics", interval="15s")],
        )
        yield extended(ServiceMonitor, _metadata(run), spec)


def _headless(
    run: Run, port: ServicePort, suffix: str = "", marks: dict[str, str] | None = None, *, early: bool = False
) -> Service:
    """Return a Service that gives each pod a name.

    `early`: before it is ready, since pods meet before they are ready.
    """
    spec = ServiceSpec(clusterIP="None", publishNotReadyAddresses=early or None, selector=labels(run), ports=[port])
    return Service(metadata=_metadata(run, suffix, marks), spec=spec)


def _metadata(run: Run, suffix: str = "", marks: dict[str, str] | None = None, *, queue: bool = False) -> ObjectMeta:
    queued = {_QUEUE: run.queue} if queue and run.queue else {}
    partial = {_LEAST_PODS: str(run.min_nodes), _SAME_COMPLETIONS: "true"} if queue and run.partial_admission else None
    return ObjectMeta(
        name=run.name + suffix,
        namespace=run.namespace or None,
        labels={**labels(run), **(marks or {}), **queued},
        annotations=partial,
    )

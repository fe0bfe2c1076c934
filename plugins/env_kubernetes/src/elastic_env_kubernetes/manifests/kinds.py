"""Kinds of objects from extensions of Kubernetes: JobSet and ServiceMonitor, with the fields that are written."""

from typing import Any

from lightkube.core.schema import DictMixin
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.batch_v1 import JobTemplateSpec
from lightkube.models.meta_v1 import ObjectMeta

JobSet = create_namespaced_resource("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
ServiceMonitor = create_namespaced_resource("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors")


def extended(kind: Any, metadata: ObjectMeta, spec: DictMixin) -> Any:  # noqa: ANN401 - classes that lightkube makes
    """Return an object of one of these kinds."""
    of = resource_of(kind)
    return kind(apiVersion=f"{of.group}/{of.version}", kind=of.kind, metadata=metadata, spec=spec.to_dict())


def resource_of(kind: Any) -> Any:  # noqa: ANN401 - classes that lightkube makes
    """Return group, version and name of a kind."""
    return kind._api_info.resource


class ReplicatedJob(DictMixin):
    """A Job of a JobSet."""

    name: str
    template: JobTemplateSpec
    replicas: int


class Network(DictMixin):
    """The names by which pods of a JobSet reach each other; the JobSet controller makes the headless Service."""

    enableDNSHostnames: bool
    publishNotReadyAddresses: bool


class FailureRule(DictMixin):
    """The action if a Job of a JobSet failed for one of these reasons."""

    name: str
    action: str
    onJobFailureReasons: list[str]


class JobSetFailurePolicy(DictMixin):
    """The limit of a JobSet's restarts."""

    maxRestarts: int
    rules: list[FailureRule]


class JobSetSpec(DictMixin):
    """The specification of a JobSet."""

    replicatedJobs: list[ReplicatedJob]
    network: Network
    failurePolicy: JobSetFailurePolicy


class Selector(DictMixin):
    """Labels of Services."""

    matchLabels: dict[str, str]


class MetricsEndpoint(DictMixin):
    """The endpoint that Prometheus scrapes."""

    port: str
    path: str
    interval: str


class ServiceMonitorSpec(DictMixin):
    """The Services that Prometheus scrapes."""

    selector: Selector
    endpoints: list[MetricsEndpoint]

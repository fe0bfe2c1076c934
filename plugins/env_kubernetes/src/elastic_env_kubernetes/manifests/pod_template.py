"""The pod of a run: one container with the command `elastic run`, and its variables."""

from collections import Counter
from collections.abc import Iterator

from lightkube.models.core_v1 import (
    Container,
    ContainerPort,
    EmptyDirVolumeSource,
    EnvVar,
    EnvVarSource,
    HTTPGetAction,
    ObjectFieldSelector,
    PersistentVolumeClaimVolumeSource,
    PodSpec,
    PodTemplateSpec,
    Probe,
    ResourceRequirements,
    SecretKeySelector,
    Volume,
    VolumeMount,
)
from lightkube.models.meta_v1 import ObjectMeta

from elastic_core.api import ConfigError
from elastic_env_kubernetes.manifests.run import Kind, Run, SecretKey
from elastic_env_kubernetes.variables import (
    FIRST_POD,
    GPUS,
    GRACE_PERIOD,
    JOB_UID,
    NNODES,
    POD_IP,
    POD_NAME,
    PORT,
    RUN,
    SPARES,
)

CONTAINER = "train"
_JOB_UID = "metadata.labels['batch.kubernetes.io/controller-uid']"
_JOBSET_UID = "metadata.labels['jobset.sigs.k8s.io/jobset-uid']"
_JOBSET_ATTEMPT = "metadata.annotations['jobset.sigs.k8s.io/restart-attempt']"


def labels(run: Run) -> dict[str, str]:
    """Return the labels of all objects of a run."""
    return {"app.kubernetes.io/instance": run.name, "app.kubernetes.io/managed-by": "elastic-k8s"}


def pod_template(run: Run) -> PodTemplateSpec:
    """Return the template of a run's pods.

    Raises:
        ConfigError: a variable is given that the manifest sets itself, or twice.
    """
    volumes, mounts = _volumes(run)
    variables = list(_variables(run))
    (name, times), *_ = Counter(each.name for each in variables).most_common(1)
    if times > 1:
        raise ConfigError(f"the variable {name} is set {times} times; expected once", hint="another name")
    container = Container(
        name=CONTAINER,
        image=run.image,
        command=["elastic", "run"],
        args=list(run.words),
        env=variables,
        ports=list(_ports(run)) or None,
        resources=_resources(run),
        livenessProbe=_probe(run),
        # The end of the log, where `elastic run` says what failed first, is then part of the pod's status.
        terminationMessagePolicy="FallbackToLogsOnError",
        volumeMounts=mounts,
    )
    spec = PodSpec(
        containers=[container],
        volumes=volumes,
        restartPolicy="Never",  # what podFailurePolicy asks for; workers are restarted in the pod
        terminationGracePeriodSeconds=run.grace_s,
        subdomain=run.name if run.kind is Kind.JOB and run.several else None,  # a JobSet puts in its own
        priorityClassName=run.priority_class or None,
        serviceAccountName=run.service_account or None,
        automountServiceAccountToken=None if run.service_account else False,  # nothing here asks the API server
        enableServiceLinks=False,
    )
    return PodTemplateSpec(metadata=ObjectMeta(labels=labels(run)), spec=spec)


def _variables(run: Run) -> Iterator[EnvVar]:
    """Yield the variables from which the pod's environment makes options, then the given ones."""
    yield _field(POD_NAME, "metadata.name")
    yield _field(POD_IP, "status.podIP")
    yield _field(JOB_UID, _JOB_UID if run.kind is Kind.JOB else _JOBSET_UID)
    if run.kind is Kind.JOBSET:
        yield _field("JOBSET_RESTART_ATTEMPT", _JOBSET_ATTEMPT)
    yield EnvVar(
        "PET_ENVIRONMENT", "kubernetes"
    )  # an image without this distribution is refused: each would train alone
    yield EnvVar(RUN, run.name)
    yield EnvVar(NNODES, run.nnodes)
    if run.spares:
        yield EnvVar(SPARES, str(run.spares))
    if run.hosts_store:
        yield EnvVar(FIRST_POD, run.first_pod)
    elif run.several:
        yield EnvVar("PET_RDZV_BACKEND", run.backend)
        yield EnvVar("PET_RDZV_ENDPOINT", run.endpoint)
    yield EnvVar(GRACE_PERIOD, str(run.grace_s))
    if run.save_s is not None:
        yield EnvVar("PET_SAVE_TIMEOUT", f"{run.save_s:g}")
    if run.gpus:
        yield EnvVar(GPUS, str(run.gpus))
    if run.health_port:
        yield EnvVar("TORCHELASTIC_HEALTH_CHECK_PORT", str(run.health_port))
        yield EnvVar("ELASTIC_HEALTH_CHECK_HOST", "0.0.0.0")  # the kubelet asks from outside of the pod
    if run.metrics_port:
        yield EnvVar("PET_METRICS_PORT", f"0.0.0.0:{run.metrics_port}")
    if run.store_secret is not None:
        yield _secret(run.credential, run.store_secret)
    yield from (_secret(name, key) for name, key in run.secrets.items())
    yield from (EnvVar(name, text) for name, text in run.variables.items())


def _field(name: str, path: str) -> EnvVar:
    return EnvVar(name, valueFrom=EnvVarSource(fieldRef=ObjectFieldSelector(fieldPath=path)))


def _secret(name: str, key: SecretKey) -> EnvVar:
    return EnvVar(name, valueFrom=EnvVarSource(secretKeyRef=SecretKeySelector(name=key.secret, key=key.key)))


def _ports(run: Run) -> Iterator[ContainerPort]:
    if run.hosts_store:
        yield ContainerPort(name="rendezvous", containerPort=PORT)
    if run.health_port:
        yield ContainerPort(name="health", containerPort=run.health_port)
    if run.metrics_port:
        yield ContainerPort(name="metrics", containerPort=run.metrics_port)


def _probe(run: Run) -> Probe | None:
    """Return the probe by which a pod with a hung agent is replaced. `--hang-timeout` is for hung workers."""
    if not run.health_port:
        return None
    return Probe(
        httpGet=HTTPGetAction(path="/health", port="health"),
        initialDelaySeconds=15,
        periodSeconds=20,
        timeoutSeconds=5,
        failureThreshold=3,
    )


def _resources(run: Run) -> ResourceRequirements | None:
    """Return processors as a request only, since a limit would throttle; the rest as a limit, also a request."""
    limits = {name: quantity for name, quantity in run.resources.items() if name != "cpu"}
    if run.gpus:
        limits[run.gpu_resource] = str(run.gpus)
    requests = {name: quantity for name, quantity in run.resources.items() if name == "cpu"}
    return ResourceRequirements(limits=limits or None, requests=requests or None) if limits or requests else None


def _volumes(run: Run) -> tuple[list[Volume], list[VolumeMount]]:
    memory = EmptyDirVolumeSource(medium="Memory", sizeLimit=run.shm_size or None)
    volumes = [Volume(name="shm", emptyDir=memory)]  # for data loaders and NCCL: a container has 64 MiB otherwise
    mounts = [VolumeMount(name="shm", mountPath="/dev/shm")]
    for number, claim in enumerate(run.claims):
        source = PersistentVolumeClaimVolumeSource(claimName=claim.name)
        volumes.append(Volume(name=f"claim-{number}", persistentVolumeClaim=source))
        mounts.append(VolumeMount(name=f"claim-{number}", mountPath=claim.path, readOnly=claim.read_only or None))
    return volumes, mounts

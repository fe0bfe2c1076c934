"""The input of a manifest: a run's image, command, nodes and settings, checked first."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from elastic_core.api import ConfigError, Record
from elastic_env_kubernetes.variables import MARGIN_S, PORT

_LABEL: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LONGEST_LABEL: Final = 63
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_QUANTITY: Final = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|[KMGTPE]i?)?")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NNODES: Final = re.compile(r"([1-9][0-9]*)(?::([1-9][0-9]*))?")
_HIGHEST_PORT: Final = 65_535
NODES: Final = "nodes"
"""The name of the one replicated job in a JobSet."""
_C10D: Final = "c10d"
_CREDENTIALS: Final = {
    _C10D: "ELASTIC_C10D_TOKEN",
    "redis": "ELASTIC_REDIS_PASSWORD",
    "etcd": "ELASTIC_ETCD_PASSWORD",
    "etcd-v2": "ELASTIC_ETCD_PASSWORD",
}
"""The variable with a backend's credential."""


class Kind(StrEnum):
    """The kind of the pods' controller."""

    JOB = "job"
    JOBSET = "jobset"


class SecretKey(Record, frozen=True):
    """A key of a Secret."""

    secret: str
    key: str


class Claim(Record, frozen=True):
    """A PersistentVolumeClaim, and its path in the container."""

    name: str
    path: str
    read_only: bool = False


class Run(Record, frozen=True, kw_only=True):
    """A run of pods. Times are in seconds; 0 means no port."""

    name: str
    image: str
    words: tuple[str, ...]
    """The arguments of `elastic run`: options, script and the script's arguments."""
    kind: Kind = Kind.JOB
    namespace: str = ""
    min_nodes: int = 1
    max_nodes: int = 1
    spares: int = 0
    gpus: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    resources: Mapping[str, str] = {}
    shm_size: str = ""
    """Empty means as much as the pod's memory."""
    claims: tuple[Claim, ...] = ()
    variables: Mapping[str, str] = {}
    secrets: Mapping[str, SecretKey] = {}
    backend: str = _C10D
    endpoint: str = ""
    store_secret: SecretKey | None = None
    shutdown_s: float = 30.0
    save_s: float | None = None
    """`None` means `shutdown_s`."""
    health_port: int = 8080
    metrics_port: int = 0
    backoff_limit: int | None = None
    """The number of pods that may fail. `None` means the kind's default."""
    restarts: int = 3
    """For a JobSet only."""
    queue: str = ""
    priority_class: str = ""
    service_account: str = ""

    @property
    def pods(self) -> int:
        """The number of pods."""
        return self.max_nodes + self.spares

    @property
    def several(self) -> bool:
        """Whether there are several nodes."""
        return self.max_nodes > 1

    @property
    def nnodes(self) -> str:
        """The value of `--nnodes`."""
        return str(self.max_nodes) if self.min_nodes == self.max_nodes else f"{self.min_nodes}:{self.max_nodes}"

    @property
    def job_name(self) -> str:
        """The name of the Job that makes the pods."""
        return self.name if self.kind is Kind.JOB else f"{self.name}-{NODES}-0"

    @property
    def first_pod(self) -> str:
        """The address of pod 0 for other pods, by the headless Service, and its port."""
        return f"{self.job_name}-0.{self.name}:{PORT}"

    @property
    def hosts_store(self) -> bool:
        """Whether pod 0 hosts the rendezvous store."""
        return self.several and self.backend == _C10D and not self.endpoint

    @property
    def partial_admission(self) -> bool:
        """Whether Kueue may admit only some of the pods, which it can do for a Job only."""
        return bool(self.queue) and self.kind is Kind.JOB and self.min_nodes < self.pods

    @property
    def credential(self) -> str:
        """The variable of `store_secret`."""
        return _CREDENTIALS[self.backend]

    @property
    def grace_s(self) -> int:
        """The grace period of a pod: time to save, the workers' grace period, and a rest for all else."""
        save_s = self.shutdown_s if self.save_s is None else self.save_s
        return -int(-(self.shutdown_s + save_s) // 1) + MARGIN_S

    def check(self) -> None:
        """Reject settings with which the API server or a pod would fail.

        Raises:
            ConfigError: the first such setting.
        """
        self._check_name()
        self._check_words()
        self._check_store()
        self._check_pod()

    def _check_name(self) -> None:
        longest = f"{self.job_name}-{self.pods - 1}"
        if not _LABEL.fullmatch(self.name) or len(longest) > _LONGEST_LABEL:
            raise ConfigError(
                f"the name: {self.name!r}; expected small letters, digits and dashes, so that a pod's host name "
                f"({longest}) has {_LONGEST_LABEL} characters at most",
                hint="a name such as bert-7",
            )
        if self.namespace and not _LABEL.fullmatch(self.namespace):
            raise ConfigError(
                f"--namespace: {self.namespace!r}; expected the name of a namespace",
                hint="--namespace training",
            )
        if self.spares and not self.several:
            raise ConfigError(f"--spares: {self.spares} with one node; expected several nodes", hint="--nnodes MIN:MAX")

    def _check_words(self) -> None:
        if not self.words:
            raise ConfigError("no script is given", hint=f"elastic k8s render {self.name} … -- train.py")

    def _check_store(self) -> None:
        if self.store_secret is not None and self.backend not in _CREDENTIALS:
            raise ConfigError(
                f"--store-secret with --rdzv-backend {self.backend!r}: expected one with a variable for its password",
                hint="--secret VARIABLE=SECRET:KEY",
            )
        if "@" in self.endpoint:  # not shown: it may hold a password
            raise ConfigError(
                "--rdzv-endpoint: it has a user or a password, which readers of the manifest would see; expected none",
                hint="HOST:PORT, and --store-secret SECRET:KEY",
            )
        if self.several and self.backend != _C10D and not self.endpoint:
            raise ConfigError(
                f"--rdzv-backend: {self.backend!r}; expected --rdzv-endpoint with it", hint="HOST:PORT of its server"
            )

    def _check_pod(self) -> None:
        if not self.image or any(each.isspace() for each in self.image):
            raise ConfigError(
                f"--image: {self.image!r}; expected the name of an image", hint="--image registry.example/train:1"
            )
        for name, quantity in {**self.resources, "--shm-size": self.shm_size or "1"}.items():
            if not _QUANTITY.fullmatch(quantity):
                raise ConfigError(f"{name}: {quantity!r}; expected a quantity", hint="16, 500m, 64Gi")
        for variable in (*self.variables, *self.secrets):
            if not _VARIABLE.fullmatch(variable):
                raise ConfigError(f"{variable!r}; expected the name of a variable", hint="NAME=VALUE")
        for secret in (*self.secrets.values(), *filter(None, (self.store_secret,))):
            if not _SUBDOMAIN.fullmatch(secret.secret) or not secret.key:
                raise ConfigError(f"'{secret.secret}:{secret.key}'; expected SECRET:KEY", hint="SECRET:KEY")
        for claim in self.claims:
            if not _SUBDOMAIN.fullmatch(claim.name) or not claim.path.startswith("/"):
                raise ConfigError(f"--volume: '{claim.name}:{claim.path}'; expected CLAIM:/PATH", hint="data:/data:ro")
        ports = [port for port in (self.health_port, self.metrics_port, PORT) if port]
        if len(set(ports)) < len(ports) or max(ports) > _HIGHEST_PORT:
            raise ConfigError(f"ports {', '.join(map(str, ports))}; expected different ones", hint="--health-port 8080")


def read_nnodes(text: str) -> tuple[int, int]:
    """Return MIN and MAX of `N` or `MIN:MAX`.

    Raises:
        ConfigError: it is neither.
    """
    match = _NNODES.fullmatch(text.strip())
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise ConfigError(f"--nnodes: {text!r}; expected N or MIN:MAX", hint="--nnodes 4, or 2:8")
    return int(match[1]), int(match[2] or match[1])

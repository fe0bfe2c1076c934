"""`elastic k8s render`: print the manifest of a run as YAML."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import click
import yaml

from elastic_core.api import ConfigError, duration_s
from elastic_core.api.commands import echo, run_option
from elastic_env_kubernetes.manifests.line import contradictions
from elastic_env_kubernetes.manifests.objects import documents
from elastic_env_kubernetes.manifests.patch import Patch, patched
from elastic_env_kubernetes.manifests.run import Claim, Kind, Run, SecretKey, read_nnodes
from elastic_env_kubernetes.yaml_file import read_documents

_T = TypeVar("_T")
_KINDS: Final = click.Choice([kind.value for kind in Kind])
_DEFAULT_SHUTDOWN: Final = "30"


def _render(name: str, words: tuple[str, ...], **given: Any) -> None:  # noqa: ANN401 - click's values
    run = _run(name, words, given)
    run.check()
    notes = list(contradictions(run))
    manifest = patched(run, documents(run), [patch for file in given["patch"] for patch in _patches(file)])
    echo(*(f"elastic: {note}" for note in notes), err=True)
    echo(*yaml.safe_dump_all(manifest, sort_keys=False, width=120).splitlines())


def _patches(file: str) -> Iterator[Patch]:
    found = read_documents("--patch", file, "a YAML file with spec: {nodeSelector: {…}}, say")
    for number, content in enumerate(found, start=1):
        yield Patch(f"--patch {file!r}{f', document {number}' if len(found) > 1 else ''}", content)


def _run(name: str, words: tuple[str, ...], given: Mapping[str, Any]) -> Run:
    least, most = read_nnodes(given["nnodes"] or "1")
    store_secret = given["store_secret"]
    save = given["save_timeout"]
    return Run(
        name=name,
        words=words,
        image=given["image"],
        kind=Kind(given["kind"]),
        namespace=given["namespace"] or "",
        min_nodes=least,
        max_nodes=most,
        spares=given["spares"],
        gpus=given["gpus"],
        gpu_resource=given["gpu_resource"],
        resources=_pairs("--resource", given["resource"], str),
        shm_size=given["shm_size"] or "",
        claims=tuple(map(_claim, given["volume"])),
        variables=_pairs("--env", given["env"], str),
        secrets=_pairs("--secret", given["secret"], lambda text: _secret_key("--secret", text)),
        backend=given["rdzv_backend"] or "c10d",
        endpoint=given["rdzv_endpoint"] or "",
        store_secret=_secret_key("--store-secret", store_secret) if store_secret else None,
        shutdown_s=_seconds("--shutdown-timeout", given["shutdown_timeout"] or _DEFAULT_SHUTDOWN),
        save_s=_seconds("--save-timeout", save) if save else None,
        health_port=given["health_port"],
        metrics_port=given["metrics_port"],
        backoff_limit=given["backoff_limit"],
        restarts=given["restarts"],
        queue=given["queue"] or "",
        priority_class=given["priority_class"] or "",
        service_account=given["service_account"] or "",
    )


def _pairs(option: str, texts: Sequence[str], read: Callable[[str], _T]) -> dict[str, _T]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ConfigError(f"{option}: {text!r}; expected NAME=VALUE", hint=f"{option} NAME=VALUE")
        found[name] = read(value)
    return found


def _secret_key(option: str, text: str) -> SecretKey:
    secret, colon, key = text.partition(":")
    if not secret or not colon or not key:
        raise ConfigError(
            f"{option}: {text!r}; expected SECRET:KEY", hint="the name of a Secret and of one of its keys"
        )
    return SecretKey(secret, key)


def _claim(text: str) -> Claim:
    name, _, rest = text.partition(":")
    path, colon, mode = rest.partition(":")
    if colon and mode != "ro":
        raise ConfigError(f"--volume: {text!r}; expected CLAIM:PATH or CLAIM:PATH:ro", hint="--volume data:/data:ro")
    return Claim(name, path, read_only=bool(colon))


def _seconds(option: str, text: str) -> float:
    found = duration_s(text)
    if found is None or found <= 0:
        raise ConfigError(f"{option}: {text!r}; expected seconds above 0", hint=f"{option} 60, or 2m")
    return found


_HELP: Final = """\
Write the manifest of a run: an Indexed Job or a JobSet, the Service through which its pods meet, and other objects.

NAME is the name of the Job and of the run. After -- follows the line of `elastic run`, without the options that each
pod sets itself: node ranks, ids, the rendezvous. The image needs elastic-core with elastic-env-kubernetes, the
backend's distribution, and elastic-torchrun for the probe.
"""
_EPILOG: Final = """\
\b
Examples:
  elastic k8s render bert-7 --image registry.example/train:1 --nnodes 4 --gpus 8 -- train.py --epochs 10
  elastic k8s render bert-7 --image registry.example/train:1 --kind jobset --nnodes 2:8 --gpus 8 \\
      --rdzv-backend redis --rdzv-endpoint redis.infra:6379 --store-secret redis:password \\
      --volume checkpoints:/checkpoints --save-timeout 2m --metrics-port 9400 -- --max-restarts 3 train.py
  elastic k8s render bert-7 --image registry.example/train:1 --patch cluster.yaml -- train.py
"""


def _flag(flag: str, help_text: str, **more: Any) -> click.Option:  # noqa: ANN401 - click's own
    return click.Option([flag], help=help_text, **more)


command = click.Command(
    "render",
    callback=_render,
    params=[
        click.Argument(["name"]),
        click.Argument(["words"], metavar="-- [RUN OPTIONS] SCRIPT [ARGS]...", nargs=-1),
        _flag("--image", "Image of the container.", metavar="IMAGE", required=True),
        _flag(
            "--kind",
            "Object that creates the pods.",
            type=_KINDS,
            default=Kind.JOB.value,
            show_default=True,
        ),
        _flag("--namespace", "Namespace of all objects.  [default: that of apply]", metavar="NAME"),
        run_option("nnodes", help_text="Number of pods, or its minimum and maximum.", other_spelling=False),
        _flag(
            "--spares", "Additional pods that replace lost ones.", metavar="K", type=click.IntRange(min=0), default=0
        ),
        _flag(
            "--gpus", "GPUs of a pod, and its number of workers.", metavar="N", type=click.IntRange(min=0), default=0
        ),
        _flag(
            "--gpu-resource", "Resource name of the GPUs.", metavar="NAME", default="nvidia.com/gpu", show_default=True
        ),
        _flag(
            "--resource",
            "Resource of a pod (repeatable): cpu=16 is a request; others, such as memory=200Gi, are request and limit.",
            metavar="NAME=QUANTITY",
            multiple=True,
        ),
        _flag("--shm-size", "Size of /dev/shm.  [default: the pod's memory]", metavar="QUANTITY"),
        _flag("--volume", "A PersistentVolumeClaim to mount (repeatable).", metavar="CLAIM:PATH[:ro]", multiple=True),
        _flag("--env", "A variable of the container (repeatable).", metavar="NAME=VALUE", multiple=True),
        _flag("--secret", "A variable from a Secret (repeatable).", metavar="NAME=SECRET:KEY", multiple=True),
        run_option(
            "rdzv_backend",
            help_text="Rendezvous backend of the pods; default: c10d, on pod 0.",
            other_spelling=False,
            variable=True,
        ),
        run_option(
            "rdzv_endpoint",
            help_text="Address of the backend's server; not for c10d.",
            other_spelling=False,
            variable=True,
        ),
        _flag(
            "--store-secret",
            "Password of the server, or the token that the pods share with c10d.",
            metavar="SECRET:KEY",
        ),
        run_option(
            "shutdown_timeout",
            help_text="Grace period of workers; that of the pod adds the time to save, and 10 s.  [default: 30]",
            other_spelling=False,
        ),
        _flag(
            "--save-timeout",
            "Time to save before a planned stop (elastic-train).  [default: as --shutdown-timeout]",
            metavar="SECONDS",
        ),
        _flag(
            "--health-port",
            "Port of the agent's health page, for the liveness probe; 0: no probe.",
            metavar="PORT",
            type=click.IntRange(0, 65535),
            default=8080,
            show_default=True,
        ),
        _flag(
            "--metrics-port",
            "Serve metrics (elastic-ops with the extra prometheus), with a Service and a ServiceMonitor.",
            metavar="PORT",
            type=click.IntRange(0, 65535),
            default=0,
        ),
        _flag(
            "--backoff-limit",
            "Number of pods that may fail; default: three times the number of pods, for a JobSet one fewer.",
            metavar="N",
            type=click.IntRange(min=0),
        ),
        _flag(
            "--restarts",
            "How often a JobSet starts a failed run again.",
            metavar="N",
            type=click.IntRange(min=0),
            default=3,
            show_default=True,
        ),
        _flag("--queue", "LocalQueue of Kueue.", metavar="NAME"),
        _flag("--priority-class", "Priority class of the pods.", metavar="NAME"),
        _flag("--service-account", "Service account of the pods; default: none is mounted.", metavar="NAME"),
        _flag(
            "--patch",
            "YAML to merge into the pod template, or into the object of the kind that the YAML names; -: standard "
            "input (repeatable).",
            metavar="FILE|-",
            multiple=True,
        ),
    ],
    help=_HELP,
    epilog=_EPILOG,
)

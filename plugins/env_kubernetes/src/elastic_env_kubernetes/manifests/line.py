"""Checks of the `elastic run` command in a manifest, and of the variables beside it, for contradictions."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, NoReturn

from elastic_core.api import ConfigError
from elastic_core.api.commands import run_option
from elastic_env_kubernetes.manifests.run import Run

_VARIABLE_PREFIX: Final = "PET_"
_SHORT_WITH_VALUE: Final = ("-p", "-r", "-t")
_BEFORE: Final = ("nnodes", "spares", "shutdown_timeout", "save_timeout", "metrics_port")
"""Options on which the manifest depends, so that they are options of `render`."""
_OF_EACH_POD: Final = {
    "node_rank": "each pod has a rank of its own",
    "node_id": "each pod has an id of its own",
    "local_addr": "each pod has an address of its own",
    "standalone": "each pod would train alone",
    "master_addr": "pods meet in the store, and rank 0 may be on any of them",
    "rdzv_id": "the run's id is the name of the manifest, and the Job's uid",
}
"""Options that pods of a run of several nodes set themselves."""
_OMIT: Final = "leave it out"
_CHECKED: Final = (*_BEFORE, *_OF_EACH_POD, "environment", "nproc_per_node", "rdzv_backend", "rdzv_endpoint")


class _Given(NamedTuple):
    """An option: its form, its identifier, and its value. `None` for a flag, or if a Secret has the value."""

    stated: str
    option: str
    value: str | None

    def refuse(self, why: str, hint: str) -> NoReturn:
        raise ConfigError(f"{self.stated}: {why}", hint=hint)


def contradictions(run: Run) -> Iterator[str]:
    """Yield a line for each setting that the user may not have meant.

    Raises:
        ConfigError: an option or a variable contradicts the manifest.
    """
    for given in (*_options(run.words), *_variables(run)):
        _check(run, given)
        workers = given.value if run.gpus and given.option == "nproc_per_node" else None
        if workers not in (None, "auto", "gpu", str(run.gpus)):
            fitting = f"--gpus {workers}" if workers.isdecimal() else "--nproc-per-node gpu"
            yield f"{given.stated}: a pod has {run.gpus} GPUs. Try: {fitting}, unless each worker uses several"
    if run.hosts_store and run.min_nodes < run.max_nodes:
        yield (
            f"--nnodes {run.nnodes} with c10d: pod 0 hosts the store, so that a loss of pod 0 ends the run; any other "
            "may be lost. Try: --rdzv-backend redis --rdzv-endpoint HOST:PORT"
        )
    if run.queue and run.min_nodes < run.pods and not run.partial_admission:
        yield (
            f"--queue {run.queue}: Kueue admits all {run.pods} pods of a JobSet or none. Try: --kind job, which it "
            f"admits with {run.min_nodes} or more"
        )


def _check(run: Run, given: _Given) -> None:
    flag = f"--{given.option.replace('_', '-')}"
    if given.option in _BEFORE:
        given.refuse("the manifest depends on it", f"{flag} before the --")
    if given.option == "environment" and given.value != "kubernetes":
        given.refuse("pods would not know of the manifest", _OMIT)
    settled = {"rdzv_backend": run.backend, "rdzv_endpoint": run.first_pod if run.hosts_store else run.endpoint}
    if run.several and given.value != settled.get(given.option, given.value):
        given.refuse(f"the manifest has {settled[given.option]!r}", f"{flag} before the --")
    if run.several and given.option in _OF_EACH_POD:
        given.refuse(_OF_EACH_POD[given.option], _OMIT)


def _options(words: Sequence[str]) -> Iterator[_Given]:
    """Yield options up to the script, as far as they are known without the distributions in the image."""
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        typed, equals, value = rest.pop(0).partition("=")
        option = typed.removeprefix("--").replace("-", "_")
        longer = [each for each in _CHECKED if each.startswith(option)]  # as `elastic run` reads beginnings
        option = longer[0] if len(longer) == 1 else option
        if not equals and rest and _takes_value(typed, option, rest[0]):
            value, equals = rest.pop(0), "="
        if typed.startswith("--"):
            shown = f" {value}" if equals and option != "rdzv_endpoint" else ""  # which may hold a password
            yield _Given(f"{typed}{shown} behind the --", option, value if equals else None)


def _takes_value(typed: str, option: str, following: str) -> bool:
    if not typed.startswith("--"):
        return typed in _SHORT_WITH_VALUE
    try:
        return run_option(option).metavar is not None
    except KeyError:  # of a distribution: a flag, if what follows is another option or the script
        return not following.startswith("-") and not following.endswith(".py")


def _variables(run: Run) -> Iterator[_Given]:
    """Yield options from variables of the container."""
    for name, value in run.variables.items():
        if option := _option_of(name):
            yield _Given(f"--env {name}", option, value)
    for name in run.secrets:
        if option := _option_of(name):
            yield _Given(f"--secret {name}", option, None)


def _option_of(variable: str) -> str:
    found = variable.removeprefix(_VARIABLE_PREFIX)
    return "" if found == variable else found.lower()

"""torchrun's parser, and torch's objects made from its arguments, for programs that extend them.

`elastic run` parses its own command line (`cli.arguments`), since argparse costs time at each start.
"""

import os
import sys
from argparse import REMAINDER, Action, ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import Any, Final

from elastic_core.api import ConfigError, RunOption
from elastic_core.embedding import (
    BY_DEST,
    LOCAL_RANK_MACRO,
    OPTIONS,
    Choices,
    Node,
    RunSettings,
    all_hook_options,
    comma_list,
    completion_script,
    count_for,
    key_values,
)
from elastic_torchrun.functions.script import run_script_path
from elastic_torchrun.launcher.launch_config import LaunchConfig
from elastic_torchrun.launcher.library_options import Given, given_from, library_environment
from elastic_torchrun.processes.logs_specs import DefaultLogsSpecs
from elastic_torchrun.processes.std import Std

__all__ = [
    "config_from_args",
    "determine_local_world_size",
    "get_args_parser",
    "get_rdzv_endpoint",
    "get_use_env",
    "main",
    "parse_args",
    "parse_min_max_nnodes",
    "run",
    "run_script_path",
]

LOCAL_RANK_ARGUMENT: Final = f"--local-rank={LOCAL_RANK_MACRO}"
"""The first argument of scripts under the old `launch`."""

_STATIC, _STATIC_PORT = "static", 29500
_LINE_ALONE: Final = frozenset({"dry_run", "verbose"})
"""Options of `elastic run` that have no use for a program."""
_TYPES: Final[dict[str, Callable[[str], Any]]] = {
    "max_restarts": int,
    "node_rank": int,
    "master_port": int,
    "shutdown_timeout": int,
    "monitor_interval": float,
    "duplicate_stdout_filters": lambda text: list(comma_list(text)),
    "duplicate_stderr_filters": lambda text: list(comma_list(text)),
}
_AS_TYPED: Final = frozenset({"module", "no_python", "run_path", "debug_rank"})


def _options() -> dict[str, RunOption]:
    """Return the options for a program, with those of installed hooks, by identifier."""
    return {option.name: option for option in (*OPTIONS, *all_hook_options()) if option.name not in _LINE_ALONE}


def get_args_parser() -> ArgumentParser:
    """Return an argparse parser with the options of `elastic run`, which include torchrun's names.

    Defaults are the values of the `PET_…` variables, if they are set. More options may be added; `run` ignores them.
    """
    parser = ArgumentParser(description="Run a training script on this node's workers, and keep it alive.")
    options = _options()
    choices = Choices({}, os.environ, options)
    for option in options.values():
        _add(parser, option, choices)
    parser.add_argument("training_script", help="script, module or program")
    parser.add_argument("training_script_args", nargs=REMAINDER, help="its arguments")
    return parser


def _add(parser: ArgumentParser, option: RunOption, choices: Choices) -> None:
    help_text, metavar = option.help.replace("%", "%%"), option.value_name
    if not metavar:
        parser.add_argument(*option.spellings, action="store_true", default=choices.flag(option.name), help=help_text)
    elif option.name == "print_completion":
        parser.add_argument(
            *option.spellings, action=_Completion, choices=option.choices, metavar=metavar, help=help_text
        )
    elif option.many:
        default = list(choices.texts(option.name))
        parser.add_argument(*option.spellings, action=_Gather, default=default, metavar=metavar, help=help_text)
    else:
        parser.add_argument(
            *option.spellings,
            type=_TYPES.get(option.name, str),
            default=choices.text(option.name),  # argparse makes the type of it
            choices=option.choices or None,
            metavar=metavar,
            help=help_text,
        )


class _Gather(Action):
    """Collects the values of an option that may be repeated, in place of its variable's values."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option: str | None = None) -> None:  # noqa: ANN401  # argparse's own
        earlier = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [*([] if earlier is self.default else earlier), values])


class _Completion(Action):
    """Prints a shell's completion script instead of a run, without a training script."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option: str | None = None) -> None:  # noqa: ANN401  # argparse's own
        sys.stdout.write(completion_script(str(values)))
        parser.exit()


def parse_args(args: Sequence[str] | None) -> Namespace:
    """Return the options, `training_script` and `training_script_args` of a line. `None` means this process's own line.

    Raises:
        SystemExit: argparse rejects the line.
    """
    return get_args_parser().parse_args(args)


def parse_min_max_nnodes(nnodes: str) -> tuple[int, int]:
    """Return the fewest and the most nodes of `N` or `MIN:MAX`.

    Raises:
        ValueError: a part is not a number.
        RuntimeError: there are more than two parts.
    """
    parts = nnodes.split(":")
    if len(parts) > 2:
        raise RuntimeError(f"nnodes is {nnodes!r}; expected a number of nodes, or MIN:MAX")
    return int(parts[0]), int(parts[-1])


def determine_local_world_size(nproc_per_node: str) -> int:
    """Return how many workers `4`, `cpu`, `gpu`, `xpu` or `auto` means on this node.

    Raises:
        ValueError: it is none of these, or there is no such device.
    """
    try:
        return int(nproc_per_node)
    except ValueError:
        found = count_for(nproc_per_node, Node(os.environ, python=sys.executable))
    if found is None:
        raise ValueError(f"nproc_per_node is {nproc_per_node!r}; expected a number, auto, gpu, cpu or xpu")
    if found.count < 1:
        raise ValueError(f"nproc_per_node is {nproc_per_node!r}: {found.reason}")
    return found.count


def get_rdzv_endpoint(args: Namespace) -> str:
    """Return the rendezvous endpoint. With `static` and no endpoint, it is the master address and port."""
    if args.rdzv_backend == _STATIC and not args.rdzv_endpoint:
        return f"{args.master_addr}:{_STATIC_PORT if args.master_port is None else args.master_port}"
    return str(args.rdzv_endpoint)


def get_use_env(args: Namespace) -> bool:
    """Return whether scripts read their local rank only from the environment; false under the old `launch`."""
    return bool(getattr(args, "use_env", True))


def config_from_args(args: Namespace) -> tuple[LaunchConfig, Callable[..., None] | str, list[str]]:
    """Return the arguments of `elastic_launch`: config, entrypoint, and its arguments. Does not change `args`.

    A `LaunchConfig` has no fields for options that torchrun does not have; `run` uses them.

    Raises:
        ConfigError: a value is invalid, or values contradict each other.
        ValueError: `nproc_per_node` or `nnodes` is invalid.
    """
    min_nodes, max_nodes = parse_min_max_nnodes(args.nnodes)
    config = LaunchConfig(
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        nproc_per_node=determine_local_world_size(args.nproc_per_node),
        run_id=args.rdzv_id,
        role=args.role,
        rdzv_endpoint=get_rdzv_endpoint(args),
        rdzv_backend=args.rdzv_backend,
        rdzv_configs=_rdzv_configs(args),
        max_restarts=args.max_restarts,
        monitor_interval=args.monitor_interval,
        start_method=args.start_method,
        log_line_prefix_template=(
            getattr(args, "log_line_prefix_template", "")  # torch 2.13's parser has none
            or os.environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")
        ),
        local_addr=args.local_addr,
        logs_specs=_logs_specs(args),
        event_log_handler=args.event_log_handler,
        numa_options=_numa_options(args),
        signals_to_handle=args.signals_to_handle,
        duplicate_stdout_filters=args.duplicate_stdout_filters,
        duplicate_stderr_filters=args.duplicate_stderr_filters,
        virtual_local_rank=args.virtual_local_rank,
        shutdown_timeout=args.shutdown_timeout,
    )
    entrypoint, before = _entrypoint(args)
    return config, entrypoint, [*before, *_arguments(args)]


def _rdzv_configs(args: Namespace) -> dict[str, Any]:
    configs: dict[str, Any] = dict(key_values(Choices({}, {}, BY_DEST), "rdzv_conf", (args.rdzv_conf,)))
    if args.rdzv_backend == _STATIC:
        configs["rank"] = args.node_rank
    return configs


def _logs_specs(args: Namespace) -> Any:  # noqa: ANN401  # whatever the entry point names
    ranks = None
    if args.local_ranks_filter:
        try:
            ranks = {int(rank) for rank in args.local_ranks_filter.split(",")}
        except ValueError as error:
            what = f"--local-ranks-filter: {args.local_ranks_filter!r}; expected local ranks with commas between them"
            raise ConfigError(what, hint="--local-ranks-filter 0,1,2") from error
    if args.logs_specs is not None:
        from elastic_torchrun.processes.chosen_logs_specs import make_logs_specs  # few have one

        made = make_logs_specs(
            args.logs_specs,
            log_dir=args.log_dir,
            redirects=args.redirects,
            tee=args.tee,
            local_ranks=None if ranks is None else frozenset(ranks),
        )
        if made is not None:
            return made.specs
    return DefaultLogsSpecs(
        log_dir=args.log_dir,
        redirects=Std.from_str(args.redirects),
        tee=Std.from_str(args.tee),
        local_ranks_filter=ranks,
    )


def _numa_options(args: Namespace) -> Any:  # noqa: ANN401  # our NumaOptions, which few want
    if getattr(args, "numa_binding", None) is None:
        return None
    from elastic_numa import AffinityMode, NumaOptions

    return NumaOptions(affinity_mode=AffinityMode(args.numa_binding))


def _entrypoint(args: Namespace) -> tuple[Callable[..., None] | str, list[str]]:
    if args.run_path:
        return run_script_path, [args.training_script]
    if not args.no_python:
        module = ["-m"] if args.module else []
        return os.environ.get("PYTHON_EXEC") or sys.executable, ["-u", *module, args.training_script]
    if args.module:
        raise ConfigError("--module and --no-python are both given; expected one of both", hint="only one of them")
    return args.training_script, []


def _arguments(args: Namespace) -> list[str]:
    return [*([] if get_use_env(args) else [LOCAL_RANK_ARGUMENT]), *args.training_script_args]


def run(args: Namespace) -> None:
    """Run as `elastic run` does with these options, to the end. The options already contain values from `PET_…`.

    Raises:
        ChildFailedError: a worker failed, here or on another node, and no restart was left.
        SignalException: a signal stopped the run.
        ElasticError: the run can't be started with these options, or no round could be formed.
    """
    from elastic_torchrun.launcher.library_run import run_for_caller

    settings = settings_of_args(args)
    result = run_for_caller(settings)
    if result.is_failed():
        from elastic_torchrun.processes.child_failed import ChildFailedError

        raise ChildFailedError(name=settings.entrypoint.name, failures=result.failures)


def main(args: Sequence[str] | None = None) -> None:
    """Run as `elastic run` does with this line (default: this process's own). Failures are exceptions.

    Raises:
        ChildFailedError: as for `run`, with its other exceptions.
    """
    run(parse_args(args))


def settings_of_args(args: Namespace) -> RunSettings:
    """Return the settings from a namespace. Missing and unknown options are ignored.

    Raises:
        ConfigError: a value is invalid, or values contradict each other.
    """
    from elastic_core.embedding import resolve

    options = _options()
    unset = Choices({}, {}, options)
    given: Given = {}
    for option in options.values():
        value = getattr(args, option.name, None)
        if value is None or value is False or value == [] or value == _unset(option, unset):
            continue
        if option.name in _AS_TYPED:
            given[option.name] = value if value is True else str(value)
        else:
            given |= given_from({option.name: value})
    environ = library_environment()
    return resolve(given, args.training_script, _arguments(args), environ=environ).settings


def _unset(option: RunOption, choices: Choices) -> object:
    """Return the option's value if it is not given."""
    text = None if not option.value_name else choices.text(option.name)
    return text if text is None else _TYPES.get(option.name, str)(text)

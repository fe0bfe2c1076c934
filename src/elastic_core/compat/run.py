"""`torch.distributed.run`, by ours."""

from elastic_core.launcher.arguments import (
    config_from_args,
    determine_local_world_size,
    get_args_parser,
    get_rdzv_endpoint,
    get_use_env,
    main,
    parse_args,
    parse_min_max_nnodes,
    run,
    run_script_path,
)

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

if __name__ == "__main__":
    from elastic_core.run import process

    process()

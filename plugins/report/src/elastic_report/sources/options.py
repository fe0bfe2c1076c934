"""The options of `elastic report` that choose a run, which are those of `elastic status`."""

from elastic_ops.run_target import complete_run as complete_run
from elastic_ops.run_target import run_of as run_of
from elastic_ops.run_target import run_params as run_params
from elastic_ops.run_target import store_params as store_params

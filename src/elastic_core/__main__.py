"""`python -m elastic_core ARGS` is `elastic ARGS`."""

from elastic_core.cli.main import elastic_process

elastic_process()

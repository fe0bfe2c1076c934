"""`python -m elastic_core ARGS` is `elastic ARGS`."""

from elastic_core.cli.main import process

process()

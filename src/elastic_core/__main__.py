"""`python -m elastic_core ARGS` is `elastic ARGS`."""

import sys

from elastic_core.cli.main import main

sys.exit(main())

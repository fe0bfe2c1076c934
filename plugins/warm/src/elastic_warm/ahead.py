"""All that training functions need for this package, for interpreters that import it before they are workers.

`--standby` imports this module by default. A worker that takes the place of another one, for which all ranks wait, then
need not spend some 40 ms of a processor on it.
"""

import sys
from contextlib import suppress
from importlib import import_module

from elastic_core.api import ConfigError
from elastic_warm import worker  # noqa: F401  # imported for later

if "torch" in sys.modules:  # otherwise `state` would import it
    with suppress(ConfigError):  # this release of torch is not supported: the script gets the error
        from elastic_warm import state  # noqa: F401  # as above
if "numpy" in sys.modules:  # a state has its generator
    import_module("numpy.random")

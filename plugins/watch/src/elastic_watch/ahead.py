"""All that workers need of this package before their scripts, for interpreters that import it before they are workers.

An interpreter that forks workers (`--standby`) imports this module, so that a worker for which all ranks wait need not.
"""

from elastic_watch import recorder_arming, stack_dumps  # noqa: F401  # imported for later
from elastic_watch.recorder import worker  # noqa: F401  # as above: `recorder_arming` imports it if torch is there

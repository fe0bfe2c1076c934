"""All that workers need of this package before their scripts, for interpreters that import it before they are workers.

An interpreter that forks workers (`--standby`) imports this module, so that a worker for which all ranks wait need not.
"""

from elastic_train import next_round  # noqa: F401  # imported for later

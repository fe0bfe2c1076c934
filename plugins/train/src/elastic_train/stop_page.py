"""The layout of the memory page in which a worker and its agent agree about a planned stop.

The agent makes one page for each worker. Words are signed, 8 bytes, aligned, in the machine's byte order, so that each
is written and read whole and no lock is needed. Training scripts import this module: it has constants only.
"""

PAGE_VARIABLE = "TRAINING_STOP_PAGE"
"""The variable with the path of the memory."""
FILE_VARIABLE = "TRAINING_STOP_FILE"
"""The variable with the path of a file that exists while a stop is held, for programs that can't map memory."""

PAGE_BYTES = 4096
MAGIC_VALUE = 0x31_504F_5453_4C45  # "ELSTOP1"
NONE = -1
"""Value in place of a step: none."""

# Words of the agent.
MAGIC = 0
ASKED = 1
"""1 since a stop is planned."""
STEP_KNOWN = 2
"""1 means that all nodes have agreed on STOP_STEP; 2 means that they have not in time, and no worker waits for it."""
STOP_STEP = 3
"""The first step that no worker begins."""

# Words of the worker.
OWNER = 16
"""The pid of the process that reads this page. 0 means none yet."""
STEP = 17
"""The last step for which it called `should_stop`. NONE means none yet."""
WAITS = 18
"""1 while it waits at that step for the agreed step; 0 after it has begun the step."""
READY = 19
"""1 after it has saved."""
WENT_BACK = 20
"""If a step was lower than the one before it, that step plus 1; else 0."""
FIRST = 21
"""The first step for which it called `should_stop`. NONE means none yet."""

"""The memory in which a worker and its agent agree about a planned stop: where each word stands.

One page for each worker, made by the agent. Words are signed, 8 bytes, aligned, in the machine's own order, so that
each is written and read whole and no lock is needed. Imported by training scripts: constants only.
"""

PAGE_VARIABLE = "TRAINING_STOP_PAGE"
"""Names the memory in a worker's environment."""
FILE_VARIABLE = "TRAINING_STOP_FILE"
"""Names the file that is there while a stop is held, for programs that can't map memory."""

PAGE_BYTES = 4096
MAGIC_VALUE = 0x31_504F_5453_4C45  # "ELSTOP1"
NONE = -1
"""In the place of a step: there is none."""

# Words of the agent.
MAGIC = 0
ASKED = 1
"""1 from when a stop is planned."""
STEP_KNOWN = 2
"""1: STOP_STEP is what all nodes have agreed about; 2: they have not in time, and nobody waits for it any more."""
STOP_STEP = 3
"""The first step that is not to be begun."""

# Words of the worker.
OWNER = 16
"""The pid of the process that looks at this; 0: none has said that it will."""
STEP = 17
"""The last step about which it has asked; NONE: none yet."""
WAITS = 18
"""1: it has not passed that step, and waits for what is agreed; 0: it has passed it."""
READY = 19
"""1: it has saved what it wants to keep."""
WENT_BACK = 20
"""Where a step was less than the one before: that step, plus 1; 0: nowhere."""
FIRST = 21
"""The first step about which it has asked; NONE: none yet."""

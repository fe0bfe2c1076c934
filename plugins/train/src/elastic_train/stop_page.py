"""The layout of the memory page that a worker and its agent share: planned stops, and the worker's progress.

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
HIGH = 4
"""The time of the first step above this one is noted in ABOVE_NS. NONE means none."""

# Words of the worker.
OWNER = 16
"""The pid of the process that calls `should_stop`. 0 means none yet."""
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

# Words of the worker's progress. Times are nanoseconds of CLOCK_MONOTONIC; 0 means not yet.
WRITER = 22
"""The pid of the process that writes the words below: OWNER, or one that only saves and restores. 0 means none yet."""
ALIVE_NS = 23
"""The first call of any function that writes to this page."""
FIRST_NS = 24
"""The time of FIRST."""
# Word 25 is the time of STEP in older versions.
ABOVE_NS = 26
"""The first call of `should_stop` with a step above ABOVE_OF, since that was HIGH."""
ABOVE_OF = 27
"""The HIGH of ABOVE_NS, written after it. NONE means none yet."""

# Marks: the times during which training waited for a save or a restore. They never overlap.
MARK_COUNT = 28
"""The number of marks ever made. Written after the mark."""
MARKS_AT = 64  # in words
MARK_SLOTS = 64
"""Mark N, from 1, is in slot (N - 1) % MARK_SLOTS."""
MARK_WORDS = 4
"""The words of a slot: those below."""
NUMBER = 0
"""The number of the mark. Written after the words below, and first set to 0."""
KIND = 1
BEGIN_NS = 2
END_NS = 3
"""0 while it is open."""

SAVE = 1
RESTORE = 2
KINDS = {SAVE: "save", RESTORE: "restore"}

# The times of the last steps.
TIMES_AT = 384  # in words
TIMES_MASK = 127
"""The time of step N is at index TIMES_AT + (N & TIMES_MASK), written after STEP, until another step replaces it."""

"""The layout of the memory that a worker and its agent share for heartbeats.

The agent makes one page for each worker. After the page, the worker's interpreter appends its stacks on request. Words
are signed, 8 bytes, aligned, in the machine's byte order, so that each is written and read whole and no lock is needed.
Training scripts import this module: it has constants only, and imports nothing.
"""

FILE_VARIABLE = "TRAINING_BEAT_FILE"
"""The variable with the path of the file."""

PAGE_BYTES = 4096
WORD_BYTES = 8

MAGIC_VALUE = 0x31_5441_4542_4C45  # "ELBEAT1"

# The words.
MAGIC = 0
HOOK = 1
"""The process that writes its stacks on a signal: its pid, and the signal 32 bits above it. 0 means none."""
OWNER = 2
"""The pid of the process with the heartbeats. 0 if none has announced them."""
BEAT_NS = 3
"""The time of the last heartbeat, in nanoseconds of CLOCK_MONOTONIC. 0 before the first."""
STEP = 4
"""The last step; negative if there is none."""

# Open sections.
SECTIONS_AT = 64  # in words
SECTION_COUNT = 16
SECTION_WORDS = 16
"""The words of one section: those below, then its name."""
SERIAL = 0
"""The number of the section in the process, from 1; 0 means none. Written last, and first set to 0 again."""
SINCE_NS = 1
LIMIT_NS = 2
NAME_BYTES = 3
NAME_AT = 4
MAX_NAME_BYTES = (SECTION_WORDS - NAME_AT) * WORD_BYTES

STACKS_BELOW_RTMAX = 5
"""The signal for stacks is this much below SIGRTMAX: a number that few programs use."""

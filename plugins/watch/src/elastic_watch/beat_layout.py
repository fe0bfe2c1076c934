"""The memory that a worker and its agent share: where each word of a heartbeat stands.

One page for each worker, made by the agent; behind the page the worker's interpreter appends its stacks when it is
asked for them. Words are signed, 8 bytes, aligned, in the machine's own order, so that each is written and read whole
and no lock is needed. Imported by training scripts: constants only, and nothing is imported here.
"""

FILE_VARIABLE = "TRAINING_BEAT_FILE"
"""Names the file in a worker's environment."""

PAGE_BYTES = 4096
WORD_BYTES = 8

MAGIC_VALUE = 0x31_5441_4542_4C45  # "ELBEAT1"

# The words.
MAGIC = 0
HOOK = 1
"""Who writes its stacks when signalled: the pid, and the signal 32 bits above it; 0: nobody."""
OWNER = 2
"""The pid of the process that beats; 0: none has said that it will."""
BEAT_NS = 3
"""When it last beat, in nanoseconds of CLOCK_MONOTONIC; 0: not yet."""
STEP = 4
"""The step that it said last; negative: none."""

# Open sections.
SECTIONS_AT = 64  # in words
SECTION_COUNT = 16
SECTION_WORDS = 16
"""Words of one section: those below, then its name."""
SERIAL = 0
"""Which section of the process it is, counted from 1; 0: none. Written last, and first set to 0 again."""
SINCE_NS = 1
LIMIT_NS = 2
NAME_BYTES = 3
NAME_AT = 4
MAX_NAME_BYTES = (SECTION_WORDS - NAME_AT) * WORD_BYTES

STACKS_BELOW_RTMAX = 5
"""The signal on which the hook writes stacks is this much below SIGRTMAX: a number that hardly anybody uses."""

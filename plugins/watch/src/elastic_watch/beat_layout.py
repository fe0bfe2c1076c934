"""The layout of the memory that a worker and its agent share for heartbeats.

The agent makes one page for each worker. Room for the content of torch's flight recorder follows, which uses no memory
until it is written. Behind it, the worker's interpreter appends its stacks on request. Words are signed, 8 bytes,
aligned, in the machine's byte order, so that each is written and read whole and no lock is needed. Training scripts
import this module: it has constants only, and imports nothing.
"""

FILE_VARIABLE = "TRAINING_BEAT_FILE"
"""The variable with the path of the file."""
ROUND_VARIABLE = "ELASTIC_ROUND"
"""A variable that each worker has, and a spare interpreter has not."""

PAGE_BYTES = 4096
WORD_BYTES = 8

MAGIC_VALUE = 0x31_5441_4542_4C45  # "ELBEAT1"

# The words.
MAGIC = 0
HOOK = 1
"""The process that writes its stacks on two signals: its pid, and the higher signal 32 bits above it. 0 means none."""
OWNER = 2
"""The pid of the process with the heartbeats. 0 if none has announced them."""
BEAT_NS = 3
"""The time of the last heartbeat, in nanoseconds of CLOCK_MONOTONIC. 0 before the first."""
STEP = 4
"""The last step; negative if there is none."""
HIGH = 5
"""The agent's. The time of the first step above this one is noted in ABOVE_NS. NONE means none."""

# The progress. Times are nanoseconds of CLOCK_MONOTONIC; 0 means not yet.
ALIVE_NS = 6
"""The first heartbeat."""
FIRST = 7
"""The first step. NONE means none yet."""
FIRST_NS = 8
"""The time of FIRST, written after it."""
# Word 9 is the time of STEP in older versions.
ABOVE_NS = 10
"""The first heartbeat with a step above ABOVE_OF, since that was HIGH."""
ABOVE_OF = 11
"""The HIGH of ABOVE_NS, written after it. NONE means none yet."""

NONE = -1
"""Value in place of a step: none."""

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

# The times of the last steps.
TIMES_AT = 384  # in words
TIMES_MASK = 127
"""The time of step N is at index TIMES_AT + (N & TIMES_MASK), written after STEP, until another step replaces it."""

# Torch's flight recorder. An agent that can't read it leaves all these words at 0.
RECORDER = 320  # in words
"""RECORDER_VALUE if the agent may request snapshots."""
RECORDER_VALUE = 0x31_4345_5245_4C45  # "ELEREC1"
ASKED = 321
"""The agent's. The number of its last request, in the first 4 bytes: the worker's thread waits for its change."""
WANTS = 322
"""The agent's. What it requests besides a snapshot: WANTS_ARRIVALS, WANTS_FILE; or in its place: WANTS_STACKS."""
WANTS_ARRIVALS = 1
WANTS_FILE = 2
WANTS_STACKS = 4
SERVER = 323
"""The pid of the process that responds. 0 means none."""
SNAPSHOT_OF = 324
"""The number of the request to which the snapshot belongs. Written after it."""
SNAPSHOT_SIZE = 325
FILE_OF = 326
"""The number of the request to which the file's content belongs. Written after it."""
FILE_SIZE = 327
FOLDER_SIZE = 328
"""The agent's. The size of the path below, in bytes. 0 means none."""
STACKS_OF = 329
"""The number of the request to which the stacks belong. Written after them."""
STACKS_SIZE = 330
FOLDER_AT = PAGE_BYTES // WORD_BYTES
"""The agent's. The path of the round's folder for the files that torch writes by itself, after the page."""
MAX_FOLDER_BYTES = 1024

SNAPSHOT_AT = 2 * PAGE_BYTES  # in bytes
MAX_SNAPSHOT_BYTES = 1 << 20
RECORDER_FILE_AT = SNAPSHOT_AT + MAX_SNAPSHOT_BYTES
MAX_RECORDER_FILE_BYTES = 8 << 20
STACKS_AT = RECORDER_FILE_AT + MAX_RECORDER_FILE_BYTES
MAX_STACKS_BYTES = 1 << 20
MEMORY_BYTES = STACKS_AT + MAX_STACKS_BYTES
"""The size of the memory before the first stack that a signal requested."""

STACKS_BELOW_RTMAX = 5
"""The higher signal for stacks is this much below SIGRTMAX: a number that few programs use. The other is next."""
STACKS_WHOLE = b"Stacks end\n"
"""The handler in Python appends this after the stacks. The one in C can't."""

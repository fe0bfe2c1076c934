"""What the product promises about time; tests hold it to these limits by `patience.kept`."""

AT_ONCE_S = 1.0
"""An agent that is told to stop ends within this in every phase in which it has no workers that take longer."""

CANCELLED_S = 0.1
"""A blocked call to a store ends within this when its wait is cancelled."""

OVERRUN_S = 0.3
"""A call that may take so long has returned within this after that time."""

GUARD_S = 1.0
"""Within this after an agent's death its guard has killed its workers and what they left, and given its seat back."""

REPLACED_S = 1.0
"""The survivors of a node that was lost run again within its lease and this."""

SPREAD_S = 1.0
"""A failure on one node has stopped the workers of all nodes within this."""

LEFT_S = 1.5
"""A node that is told to stop is not waited for: the others' new workers run within this."""

SEEN_S = 0.02
"""A worker's line is on the console within this."""

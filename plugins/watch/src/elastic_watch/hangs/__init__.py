"""Whether workers hang, and what is reported of it."""

"""File timers as the agent serves them (`TORCHELASTIC_ENABLE_FILE_TIMER=1`): wire format, deadlines, the pipe."""

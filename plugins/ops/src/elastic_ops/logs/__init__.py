"""`elastic logs`: the log files of workers."""

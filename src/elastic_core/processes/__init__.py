"""Worker processes: start, stop ladder, output, log files, error files."""

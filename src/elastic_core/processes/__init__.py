"""Worker processes: start, stop ladder, output, log files and error files."""

"""`elastic policy`: a restart policy tried out with no job."""

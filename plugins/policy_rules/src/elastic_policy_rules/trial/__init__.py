"""`elastic policy`: test a restart policy without a job."""

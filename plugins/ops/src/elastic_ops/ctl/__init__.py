"""`elastic ctl`: requests to the control plane of a running agent or worker."""

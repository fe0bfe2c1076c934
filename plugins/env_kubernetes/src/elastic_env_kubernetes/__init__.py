"""Kubernetes for elastic-core: what a pod's variables say of a run, and `elastic k8s`."""

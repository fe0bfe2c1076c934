"""Kubernetes for elastic-core: options of a run from a pod's variables, and `elastic k8s`."""

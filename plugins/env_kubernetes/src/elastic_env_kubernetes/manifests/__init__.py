"""Manifests of a run: typed objects of Kubernetes' API, and their YAML."""

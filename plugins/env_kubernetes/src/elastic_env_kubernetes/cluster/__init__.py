"""Runs in a cluster: their objects and pods, through the API server."""

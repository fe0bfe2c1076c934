"""Runs in a cluster: applying their objects, and looking after their pods, through the API server."""

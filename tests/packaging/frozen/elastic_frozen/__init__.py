"""Plugins of every kind, as they were written for api_version 1."""

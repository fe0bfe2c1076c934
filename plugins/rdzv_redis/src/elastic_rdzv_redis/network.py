"""The core's way to reach a host: the one place that says where it is imported from."""

from elastic_core.api import Endpoint, dial, parse_endpoint

__all__ = ["Endpoint", "dial", "parse_endpoint"]

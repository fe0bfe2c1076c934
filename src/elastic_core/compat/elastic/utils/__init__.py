"""`torch.distributed.elastic.utils`, by ours."""

from elastic_core.compat.elastic.utils.api import get_env_variable_or_raise, get_socket_with_port, macros

__all__ = ["get_env_variable_or_raise", "get_socket_with_port", "macros"]

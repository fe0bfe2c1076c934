"""`torch.distributed.elastic.timer.debug_info_logging`, by ours."""

from elastic_core.timer.debug_info_logging import log_debug_info_for_expired_timers

__all__ = ["log_debug_info_for_expired_timers"]

"""`torch.distributed.elastic.utils.log_level`, by ours."""

__all__ = ["get_log_level"]


def get_log_level() -> str:
    """Return the level of loggers where LOGLEVEL names none."""
    return "WARNING"

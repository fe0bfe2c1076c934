"""`torch.distributed.elastic.multiprocessing.tail_log`, by ours."""

from elastic_core.multiprocessing.tail_log import TailLog, tail_logfile

__all__ = ["TailLog", "tail_logfile"]

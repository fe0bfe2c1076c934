"""`torch.distributed.elastic.timer.api`, by ours."""

from elastic_core.timer.api import RequestQueue, TimerClient, TimerRequest, TimerServer, configure, expires

__all__ = ["RequestQueue", "TimerClient", "TimerRequest", "TimerServer", "configure", "expires"]

"""`torch.distributed.elastic.timer.local_timer`, by ours."""

from elastic_core.timer.local_timer import LocalTimerClient, LocalTimerServer, MultiprocessingRequestQueue

__all__ = ["LocalTimerClient", "LocalTimerServer", "MultiprocessingRequestQueue"]

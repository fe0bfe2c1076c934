"""`torch.distributed.elastic.multiprocessing.redirects`, by ours."""

from elastic_core.multiprocessing.redirects import redirect, redirect_stderr, redirect_stdout

__all__ = ["redirect", "redirect_stderr", "redirect_stdout"]

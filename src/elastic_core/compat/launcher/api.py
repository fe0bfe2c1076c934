"""`torch.distributed.launcher.api`, by ours."""

from elastic_core.launcher import LaunchConfig, elastic_launch, launch_agent

__all__ = ["LaunchConfig", "elastic_launch", "launch_agent"]

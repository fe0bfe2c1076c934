"""Checkpoints of a training script: each is complete or absent, and all ranks load the same one.

The folder has one subfolder per checkpoint, such as `00000012-step-500`. The number rises with each save, whatever the
step is. The name of a subfolder that is being written or removed begins with a dot, so that no reader uses it.
"""

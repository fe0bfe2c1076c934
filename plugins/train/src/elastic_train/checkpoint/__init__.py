"""Checkpoints of a training script: written whole or not at all, and the same one for all ranks.

A folder has one folder for each checkpoint, `00000012-step-500`: its number rises with each save, whatever the steps
do. What is being written or removed begins with a dot there, so that no reader takes it.
"""

"""Slurm, for elastic-core: what a job's variables say of a run, and how a run ends where Slurm is to start it again."""

"""Slurm for elastic-core: options of a run from a job's variables, and the end of a run that Slurm starts again."""

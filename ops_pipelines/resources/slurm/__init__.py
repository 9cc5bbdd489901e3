"""Slurm: its commands, its answers in every version, its accounting."""

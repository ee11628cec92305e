"""Faults at length, on this machine and on a Slurm of its own: ``python -m benchmarks.chaos``."""

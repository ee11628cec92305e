"""Faults at length on this machine: ``python -m benchmarks.chaos``."""

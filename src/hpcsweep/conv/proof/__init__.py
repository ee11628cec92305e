"""Proof of which algorithm ran, from what the profiler saw."""

"""Proof of which algorithm ran, from what the profiler saw; `profiled_passes` tells its steps."""

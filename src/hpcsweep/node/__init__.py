"""Runs on the compute node: the supervisor feeds points to a worker and writes their rows."""

"""Reads and writes all files under `results/`, on the submitting and on the measuring side."""

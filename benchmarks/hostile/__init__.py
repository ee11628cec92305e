"""What hpcsweep does with input that nobody meant for it: run ``python -m benchmarks.hostile``."""

"""How hpcsweep's measuring compares with other tools: ``python -m benchmarks.measurement``."""

"""The same study with hpcsweep and its peers, on this machine: ``python -m benchmarks.peers``."""

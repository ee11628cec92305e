"""hpcsweep: sweeps of convolutional-network timings over a Slurm cluster, point by point."""

__version__ = "0.1.0"

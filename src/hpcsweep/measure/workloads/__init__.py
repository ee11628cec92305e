"""What a point runs: one module or folder per workload."""

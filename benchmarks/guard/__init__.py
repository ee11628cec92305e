"""What a fixed set of runs costs: beside another revision (`make bench`), and as counts (CI)."""

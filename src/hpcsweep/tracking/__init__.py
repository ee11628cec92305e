"""What became of what was submitted: status, Slurm's answers, cancelling, broken nodes."""

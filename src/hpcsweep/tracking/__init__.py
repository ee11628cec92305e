"""Status of submitted jobs: their points, chunks and logs, Slurm's answers, broken nodes."""

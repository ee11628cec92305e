"""What lies under `results/`: folders, chunks, shards, journals; used by both sides."""

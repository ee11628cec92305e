"""What runs on the node and needs torch: models, passes, clocks, provenance."""

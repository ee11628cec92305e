"""Measures one point on the node with torch: models, passes, clocks, provenance."""

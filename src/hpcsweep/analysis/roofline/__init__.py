"""Rooflines: roofs of a GPU, and the points of a sweep or a profiler's export below them."""

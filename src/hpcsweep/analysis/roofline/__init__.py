"""Draws rooflines: the roofs of a GPU, and below them what a sweep or a profiler counted.

`sweep` (rows), `ncu` (NVIDIA) and `rocprof` (AMD) make pieces of `work`, `model` puts the roofs
above them and writes text, JSON and CSV, `chart` draws.
"""

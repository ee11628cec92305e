"""Draws rooflines: the roofs of a GPU, and below them what a sweep or a profiler counted.

`sweep_work` (rows), `ncu` (NVIDIA) and `rocprof` (AMD) make pieces of work as `roofs` defines them,
`rooflines` puts the roofs above them and writes text, JSON and CSV, `chart` draws.
"""

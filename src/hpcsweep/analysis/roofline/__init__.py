"""Draws rooflines: the roofs of a GPU, and below them what a sweep or a profiler counted.

`ncu` (NVIDIA) and `rocprof` (AMD) make pieces of work as `roofs` defines them. `rooflines` makes
those of a sweep, puts the roofs above all, and writes text, JSON and CSV. `charts` draws.
"""

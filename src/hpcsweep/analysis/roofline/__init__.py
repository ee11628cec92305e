"""Draws rooflines: the roofs of a GPU, and below them what a sweep or a profiler counted.

Read in this order:

* `work` says what is compared: pieces of work (FLOPs, bytes, seconds) and roofs.
* `sweep` makes pieces of the rows of a collected sweep.
* `ncu` makes them of NVIDIA's counters, which `ncu_export` reads from the profiler's file.
* `rocprof` makes them of AMD's counters; `export_file` is what both profilers' files share.
* `model` chooses among these, puts the roofs above the pieces, and writes text, JSON and CSV.
* `chart` draws the picture, with `labels` for the long names of kernels.
"""

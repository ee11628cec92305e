"""Brings results of other machines and of other programs under `results/`, as shards.

`importer` decides what a path is. `folder` copies the submissions of a results folder. What others
measured is read by `predecessor`, `finddb` and `trace`, and written by `submission`.
"""

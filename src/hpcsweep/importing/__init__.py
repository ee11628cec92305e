"""Brings results of other machines and of other programs under `results/`, as shards.

`workflow` decides what a path is. `folder` copies the submissions of a results folder,
`predecessor` reads the tables of the program that hpcsweep replaces.
"""

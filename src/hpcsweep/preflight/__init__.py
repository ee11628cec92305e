"""Checks before the queue: whether a profile, its cluster, its folders and this machine fit."""

"""Checks a profile, its cluster, the folders and this machine before a job enters the queue."""

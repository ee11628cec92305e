"""Merges the intact rows of all shards into tables, and reports what it could not read."""

"""Shards to tables: merges every intact row, and names what it could not read."""

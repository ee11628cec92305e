"""Data sets: loaders, downloads, and a user's own factories."""

"""Reads and checks sweep files and profiles, and expands a sweep into points lazily."""

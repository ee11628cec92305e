"""Loads and downloads data sets and weights; runs the user's own factories."""

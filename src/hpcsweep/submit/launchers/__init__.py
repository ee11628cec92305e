"""Starts the chunks of a prepared submission, one way per module; none knows another."""

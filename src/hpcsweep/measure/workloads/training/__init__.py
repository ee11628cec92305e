"""Measures trainings: whole runs, steps, phases, and layers forward and backward."""

"""This machine as the place where chunks run."""

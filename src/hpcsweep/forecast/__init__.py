"""Predicts times that were not measured, from tables that were: see docs/prediction.md."""

"""Clocks, the measuring loop, statistics, and the timers of layers."""

"""Benches in these tests find a machine on which nobody else computes."""

from __future__ import annotations

from quiet import quiet_machine

__all__ = ["quiet_machine"]

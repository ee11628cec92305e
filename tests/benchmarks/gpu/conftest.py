"""Steps that time find a GPU that is steady."""

from __future__ import annotations

from steadygpu import steady_gpu

__all__ = ["steady_gpu"]

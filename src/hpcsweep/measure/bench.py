"""Chooses what measures a workload that needs torch; the worker's only door into this package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcsweep.worker import Bench


def torch_bench(workload: str, run: Mapping[str, Any]) -> Bench:
    """Return the bench of a workload, after checking the machine against the profile's promises.

    Raises:
        Refused: the device is not what the profile promised, or this torch cannot use it.

    """
    raise NotImplementedError

"""Submissions as `submit` writes them, which nobody has launched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcsweep.submit import compare, draft, steps
from hpcsweep.submit.compare import Submit

if TYPE_CHECKING:
    from hpcsweep.store.folders import SweepDir
    from hpcsweep.submit.request import Request


def written(sweep_dir: SweepDir, request: Request) -> Submit:
    """Compare, pack, estimate and write; the submission is `new` of what is returned."""
    before_sending = (compare.compare, draft.pack, draft.estimate, draft.write)
    return steps.through(before_sending, Submit(sweep_dir=sweep_dir, request=request))

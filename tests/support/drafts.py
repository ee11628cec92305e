"""Submissions as `submit` writes them, which nobody has launched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcsweep.submit import comparison, draft, steps
from hpcsweep.submit.comparison import Submit

if TYPE_CHECKING:
    from hpcsweep.store.folders import SweepDir
    from hpcsweep.submit.request import Request


def written(sweep_dir: SweepDir, request: Request) -> Submit:
    """Compare, pack, estimate and write; the submission is `new` of what is returned."""
    before_sending = (comparison.compare, draft.pack, draft.estimate, draft.write)
    return steps.through(before_sending, Submit(sweep_dir=sweep_dir, request=request))

"""Answers in this process what `submit` asks of torch, so that tests need no other one."""

from __future__ import annotations

import json
from typing import Any

from hpcsweep import search_path
from hpcsweep.measure import inputs, trials


def ask(
    folders: Any, networks: Any, _seconds: float = 0.0, devices: Any = None
) -> dict[str, list[Any]]:
    """Answer as `hpcsweep.submit.questions.ask` does, but for what keeps networks apart."""
    search_path.use(folders)
    asked = json.loads(json.dumps(networks))  # as it is sent
    found = {name: [inputs.answer(one) for one in some] for name, some in asked.items()}
    if devices is not None:
        found[trials.CUDNN] = [inputs.answer(trials.engines_for(found, devices))]
    return found

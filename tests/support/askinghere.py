"""Answers in this process what `submit` asks of torch, so that tests need no other one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hpcsweep import sources
from hpcsweep.measure import trials
from hpcsweep.submit.questions import Ask


@contextmanager
def asking(folders: Any, _seconds: float = 0.0) -> Iterator[Ask]:
    """Answer as `hpcsweep.submit.questions.asking` does, but for what keeps networks apart."""
    sources.look_in(folders)
    # through JSON, as it is sent
    yield lambda _, asked: [trials.answer(one) for one in json.loads(json.dumps(asked))]

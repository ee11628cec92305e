"""What is there already: another sweep's folder, and points that need not be measured."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from drafts import written
from hpcsweep.errors import Refused
from hpcsweep.spec import profile, sweep_file
from hpcsweep.store.state import PointStatus
from hpcsweep.submit import comparison, request
from localruns import TEN

if TYPE_CHECKING:
    from pathlib import Path


def test_a_second_sweep_file_of_one_name_is_refused(desk):
    """They share a folder; a copy, an edited file, a retry, a file that is gone are none."""
    first, other = desk.folder / "sweep.yaml", desk.folder / "other" / "sweep.yaml"
    other.parent.mkdir()

    def send(file: Path, models: str, **more: Any) -> None:
        file.write_text(TEN.replace("a, b", models))
        asked = replace(request.make(sweep_file.load(file), profile.load("local")), **more)
        comparison.check_same_name(desk.sweep(), asked)
        assert written(desk.sweep(), asked).new

    for file, models in ((first, "a"), (first, "a, b"), (other, "a, b")):
        send(file, models)
    with pytest.raises(Refused) as told:
        send(first, "c")
    assert f"holds results of {other}, another sweep of this name: give one" in str(told.value)
    send(first, "c", options=request.Options(join=True))
    send(other, "d", again=frozenset(PointStatus))
    first.unlink()
    send(other, "e")

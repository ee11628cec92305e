"""Loads the scripts of docs/, which are no package."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from paths import ROOT

if TYPE_CHECKING:
    from types import ModuleType

DOCS = ROOT / "docs"


def load(name: str) -> ModuleType:
    """Return `docs/NAME.py` as a module."""
    found = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module

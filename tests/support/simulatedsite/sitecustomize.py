"""Read by every Python that finds this folder on its path: torch, once imported, has a GPU."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any


class _Simulating:
    """Finds torch, and puts the simulated GPU into it when it has been loaded."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> Any:
        """Return torch's spec; nothing of other modules."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            importlib.import_module("simulatedcuda").install()

        vars(spec.loader)["exec_module"] = exec_module
        return spec


sys.meta_path.insert(0, _Simulating())

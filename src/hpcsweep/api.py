"""The commands as functions, for notebooks and scripts: tables in, tables out.

``import hpcsweep`` offers what stands here. docs/python.md explains it with examples.
"""

from __future__ import annotations

import inspect
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcsweep.analysis import dataset
from hpcsweep.collect import fresh
from hpcsweep.errors import EXIT_INTERRUPTED, SpecError, UsageError
from hpcsweep.spec import configuration
from hpcsweep.store import runs

if TYPE_CHECKING:
    import pandas as pd

    from hpcsweep.spec.space import Sweep
    from hpcsweep.store.rundir import RunDir


@dataclass(frozen=True)
class Results:
    """The tables of one sweep as DataFrames, each read when it is first used.

    Units are suffixes of the columns. Empty cells are NA. Every status and orphans are included.
    """

    run: RunDir

    @cached_property
    def overall(self) -> pd.DataFrame:
        """One row per point."""
        return dataset.typed(self.run.overall, self.run.name)

    @cached_property
    def layers(self) -> pd.DataFrame:
        """One row per layer call of a measured point."""
        return dataset.typed(self.run.layers, self.run.name)

    @cached_property
    def samples(self) -> pd.DataFrame:
        """One row per timed pass of a measured point."""
        return dataset.typed(self.run.samples, self.run.name)

    def __repr__(self) -> str:
        return f"Results({str(self.run.path)!r})"


def load(sweep: str | os.PathLike[str], *, results: str | os.PathLike[str] = "") -> Results:
    """Return the tables of a sweep, given by its name, its file or its results folder.

    ``SWEEP@RUN`` has the rows of one of its runs alone, such as ``quickstart@previous``.

    They hold all rows that there are now; they are collected first if need be.

    `results` is the folder of all results; by default as for the commands.

    Raises:
        UsageError: there is no such sweep. A table that was not collected raises it, too.
    """
    named = Path(sweep)
    inside = named.is_dir() and (named / "submissions").is_dir()
    root = named.parent if inside else configuration.results_folder(results)
    run, notes = fresh.tables_of(runs.of_run(root, str(sweep)))
    for line in notes:
        warnings.warn(f"{run.name}: {line}", stacklevel=2)
    return Results(run)


def run(
    sweep: Mapping[str, Any] | str | os.PathLike[str],
    *,
    results: str | os.PathLike[str] = "",
    sample: int | None = None,
    workers: int | None = None,
) -> Results:
    """Measure on this machine what a sweep has no results of yet, and return its tables.

    `sweep` is a sweep's name, its file, or the same as a dictionary, which needs a ``name``. In
    it a model may be a class or function of a module, and values a range or an array.
    `sample` and `workers` are those of `hpcsweep submit`. Points that fail are rows with the reason
    in ``status_reason``; they raise nothing.

    Raises:
        SpecError: the sweep is wrong.
        KeyboardInterrupt: it was stopped; the same call resumes.
    """
    from hpcsweep.collect import workflow as collecting  # noqa: PLC0415 - `load` needs none of it
    from hpcsweep.store import rundir  # noqa: PLC0415
    from hpcsweep.submit import request, workflow  # noqa: PLC0415

    options = request.Options(sample=sample, workers=workers)
    with _read(sweep) as found:
        asked = request.of_cluster(found, "local", options)
        code = workflow.submit(configuration.results_folder(results), asked, _warn)
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    folder = rundir.open_run(configuration.results_folder(results), found.name)
    if error := collecting.collect(folder).error():
        raise error
    return Results(folder)


def _warn(line: str) -> None:
    """Warn of what a command would only note: nobody reads the other lines."""
    if line.startswith("note: "):
        warnings.warn(line.removeprefix("note: "), stacklevel=4)


@contextmanager
def _read(sweep: Mapping[str, Any] | str | os.PathLike[str]) -> Iterator[Sweep]:
    """Yield a sweep; one that is a dictionary has a file only meanwhile."""
    import yaml  # noqa: PLC0415

    from hpcsweep.spec import sweep_file  # noqa: PLC0415

    if isinstance(sweep, (str, os.PathLike)):
        yield sweep_file.load(sweep)
        return
    if not sweep.get("name"):
        raise UsageError("a sweep that is a dictionary needs a name: it names the results folder")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sweep.yaml"
        path.write_text(yaml.safe_dump(_plain(sweep), sort_keys=False), encoding="utf-8")
        try:
            found = sweep_file.load(path)
        except SpecError as error:  # of which file is no help: it is gone
            raise SpecError(re.sub(rf"{re.escape(str(path))}:(\d+: )?", "", str(error))) from None
        yield found


def _plain(value: Any) -> Any:  # noqa: ANN401 - what YAML can say
    """Return what a sweep file says of a Python value.

    Raises:
        UsageError: a class or function that another process cannot import by its name.
    """
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if hasattr(value, "tolist"):  # an array, or a number of numpy's
        return value.tolist()
    if isinstance(value, (list, tuple, range, set, frozenset)):
        return [_plain(inner) for inner in value]
    if not isinstance(value, type) and not inspect.isroutine(value):
        return value
    name = f"{value.__module__}:{value.__qualname__}"
    if value.__module__ == "__main__" or "<" in name:
        raise UsageError(f"{name}: the measuring process cannot import it; write it into a file")
    return name

"""The commands as functions, for notebooks and scripts: docs/python.md has examples."""

from __future__ import annotations

import inspect
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from hpcsweep import catalog, messages
from hpcsweep.analysis import merged
from hpcsweep.analysis.best import best_of_sweep
from hpcsweep.analysis.compare import compare_sides, read_side
from hpcsweep.analysis.layers import slowest_layers
from hpcsweep.analysis.nodes import read_nodes
from hpcsweep.analysis.report import read_report
from hpcsweep.errors import EXIT_INTERRUPTED, SpecError, UsageError
from hpcsweep.spec import lookup
from hpcsweep.store import runs
from hpcsweep.store.collect import collector
from hpcsweep.text import shown

if TYPE_CHECKING:
    from hpcsweep.analysis.charts import Picture
    from hpcsweep.analysis.formats import View
    from hpcsweep.spec.space import Sweep
    from hpcsweep.store.folders import SweepDir


@dataclass(frozen=True)
class Results:
    """The tables of one sweep as DataFrames, each read when it is first used.

    Units are suffixes of the columns. Empty cells are NA. Every status and orphans are included.
    The tables of the commands are DataFrames, too, with `title` and `notes` in their `attrs`.
    """

    sweep_dir: SweepDir

    @cached_property
    def overall(self) -> pd.DataFrame:
        """One row per point."""
        return merged.typed(self.sweep_dir.overall, self.sweep_dir.name)

    @cached_property
    def layers(self) -> pd.DataFrame:
        """One row per layer call of a measured point."""
        return merged.typed(self.sweep_dir.layers, self.sweep_dir.name)

    @cached_property
    def samples(self) -> pd.DataFrame:
        """One row per timed pass of a measured point."""
        return merged.typed(self.sweep_dir.samples, self.sweep_dir.name)

    @cached_property
    def flags(self) -> pd.DataFrame:
        """A column of true and false for each flag of some row, with the rows of `overall`.

        pandas has an attribute `flags` of its own; the text is in ``overall["flags"]``.
        """
        flags: pd.DataFrame = self.overall["flags"].fillna("").str.get_dummies(";").astype(bool)
        return flags

    def report(self, *, where: str = "", metric: str = "") -> pd.DataFrame:
        """Return the table of `hpcsweep report`."""
        _text("where", where)
        return _frame(read_report(self.sweep_dir, where=where, metric=metric).views[0])

    def nodes(self, *, where: str = "", metric: str = "median_ms") -> pd.DataFrame:
        """Return which node is slow, as `hpcsweep report` says below its table.

        `UsageError` where no two nodes measured the same points.
        """
        _text("where", where)
        return _frame(read_nodes(self.sweep_dir, where=where, metric=metric))

    def slowest(
        self,
        *,
        by: str = "layer",
        where: str = "",
        metric: str = "",
        top: int = 20,
        unreliable: bool = False,
    ) -> pd.DataFrame:
        """Return the table of `hpcsweep layers`: the slowest ones, with their share of the pass."""
        _text("where", where)
        return _frame(
            slowest_layers(
                self.sweep_dir, by=by, where=where, metric=metric, top=top, unreliable=unreliable
            )
        )

    def best(
        self, *, where: str = "", over: str = catalog.AUTO, unreliable: bool = False
    ) -> pd.DataFrame:
        """Return the table of `hpcsweep best`; the maps are in its `attrs`."""
        _text("where", where)
        chosen = best_of_sweep(self.sweep_dir, where=where, over=over, unreliable=unreliable)
        return _frame(chosen.view, maps=dict(chosen.maps))

    def compare(
        self,
        other: Results | str,
        *,
        where: str = "",
        metric: str = "median_ms",
        across: Sequence[str] = (),
        unreliable: bool = False,
    ) -> pd.DataFrame:
        """Return what is faster or slower in `other` than here, as `hpcsweep compare` does.

        `other` are results, or a side as that command takes it.
        """
        _text("where", where)
        if not isinstance(other, (Results, str)):
            found = f"found a {type(other).__name__}"
            raise UsageError(f'compare: {found}; give hpcsweep.load("NAME"), or "NAME@previous"')
        named = other if isinstance(other, str) else other.side
        base, side = (
            read_side(
                self.sweep_dir.path.parent,
                text,
                where,
                unreliable=unreliable,
                renewed=lambda run: collector.tables_of(run)[0],
            )
            for text in (self.side, named)
        )
        return _frame(compare_sides(base, side, metric=metric, across=list(across)).view())

    def plot(
        self,
        x: str | None = None,
        y: str = "median_ms",
        *,
        by: Sequence[str] = (),
        where: str = "",
        baseline: str = "",
        **look: Any,  # noqa: ANN401 - a width, a font
    ) -> Picture:
        """Return a matplotlib figure: one column over another, as `hpcsweep plot` draws it.

        `look` has the fields of `hpcsweep.analysis.drawing.Look`: width, height, font, dpi.
        """
        from hpcsweep.analysis import charts, drawing, plot  # noqa: PLC0415 - matplotlib: slow

        lines = plot.read_plot(self.sweep_dir, x, y, by=by, where=where, baseline=baseline)
        return charts.picture_of(lines, drawing.Look(**look))

    @property
    def side(self) -> str:
        """The results as `hpcsweep compare` takes them: a folder, and the run if it is one."""
        run = self.sweep_dir.at
        return f"{self.sweep_dir.path}@{run}" if run else str(self.sweep_dir.path)

    def __repr__(self) -> str:
        return f"Results({str(self.sweep_dir.path)!r})"

    def _repr_html_(self) -> str:
        """Return the report's table; of a sweep in which nothing was measured, why."""
        try:
            report = self.report().map(lambda cell: shown(cell) if type(cell) is str else cell)
            return str(report.to_html(index=False))
        except UsageError as error:
            return f"<pre>{escape(str(error))}</pre>"


def load(sweep: str | os.PathLike[str], *, results: str | os.PathLike[str] = "") -> Results:
    """Return the tables of a sweep, given by its name, its file or its results folder.

    ``SWEEP@RUN`` has the rows of one of its runs alone, such as ``quickstart@previous``. The tables
    have all rows that there are now: they are collected first if need be. `results` is the folder
    of all results; by default as for the commands. `UsageError` where there is no such sweep, and
    later for a table that was not collected.
    """
    of_run = runs.of_run(lookup.results_folder(results), str(sweep))
    run, notes = collector.tables_of(of_run)
    for line in notes:
        messages.note(f"{run.name}: {line}")
    return Results(run)


def run(
    sweep: Mapping[str, Any] | str | os.PathLike[str],
    *,
    results: str | os.PathLike[str] = "",
    sample: int | None = None,
    workers: int | None = None,
    cluster: str = "local",
) -> Results:
    """Measure on this machine what a sweep has no results of yet, and return its tables.

    `sweep` is a sweep's name, its file, or the same as a dictionary, which needs a ``name``. In
    it a model may be a class or function of a module, and values a range or an array.
    `sample` and `workers` are those of `hpcsweep submit`. Points that fail are rows with the reason
    in ``status_reason``; they raise nothing. What the command prints as a note or a warning, such
    as failures, is a Python warning. `SpecError` where the sweep is wrong, and `KeyboardInterrupt`
    where it was stopped: the same call resumes.
    """
    from hpcsweep.store import folders  # noqa: PLC0415 - `load` needs none of it
    from hpcsweep.submit import request, steps  # noqa: PLC0415

    if cluster != "local":
        way = f"in a shell: hpcsweep submit SPEC --cluster {cluster}; then hpcsweep.load(NAME)"
        raise UsageError(f"run measures on this machine, not on cluster '{cluster}'; {way}")
    options = request.Options(sample=sample, workers=workers)
    with _read(sweep) as loaded:
        asked = request.of_cluster(loaded, "local", options)
        if isinstance(sweep, Mapping):  # the folder of its file vanishes
            asked = replace(asked, search_path=asked.search_path[1:])
        folder = lookup.results_folder(results)
        code = steps.submit(folder, asked)
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt(f"{loaded.name} was stopped; the same call goes on with it")
    measured = folders.open_sweep(folder, loaded.name)
    error = collector.collect(measured).error()
    if error:
        raise error
    return Results(measured)


def _frame(view: View, **more: object) -> pd.DataFrame:
    frame: pd.DataFrame = pd.DataFrame(view.frame).infer_objects()
    frame.attrs.update(title=view.title, notes=[*view.marks, *view.notes], **more)
    return frame


def _text(name: str, given: object) -> None:
    """Refuse conditions that are no text, with the text for them."""
    if isinstance(given, Mapping):
        written = ",".join(f"{key}={value}" for key, value in given.items())
        raise UsageError(f'{name}: found a dictionary; write {name}="{written}"')
    if not isinstance(given, str):
        found = f"found a {type(given).__name__}"
        raise UsageError(f'{name}: {found}; write {name}="input_size=224,algorithm=auto"')


@contextmanager
def _read(sweep: Mapping[str, Any] | str | os.PathLike[str]) -> Iterator[Sweep]:
    """Yield a sweep; one that is a dictionary has a file only meanwhile."""
    import yaml  # noqa: PLC0415

    from hpcsweep.spec import sweep_file  # noqa: PLC0415

    if isinstance(sweep, (str, os.PathLike)):
        yield sweep_file.load(sweep)
        return
    if not isinstance(sweep, Mapping):
        raise UsageError(f"a sweep is a name, a file or a dictionary; found {sweep!r}")
    if not sweep.get("name"):
        raise UsageError("a sweep that is a dictionary needs a name: it names the results folder")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sweep.yaml"
        path.write_text(yaml.safe_dump(_plain(sweep), sort_keys=False), encoding="utf-8")
        try:
            yield sweep_file.load(path)
        except SpecError as error:  # of which file is no help: it is gone
            raise SpecError(re.sub(rf"{re.escape(str(path))}:(\d+: )?", "", str(error))) from None


def _plain(value: Any) -> Any:  # noqa: ANN401 - what YAML can say
    """Return what a sweep file says of a Python value; of a class or function, how to import it."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if hasattr(value, "tolist"):  # an array, or a number of numpy's
        return value.tolist()
    if isinstance(value, (list, tuple, range, set, frozenset)):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, (str, int, float, date)):
        return value
    if isinstance(value, os.PathLike):
        return str(value)
    if not isinstance(value, type) and not inspect.isroutine(value):
        what = f"found a {type(value).__name__}, which the measuring process cannot make"
        raise UsageError(f"{what}; a network is a class or function of a module, or 'module:name'")
    name = f"{value.__module__}:{value.__qualname__}"
    if value.__module__ == "__main__" or "<" in name:
        raise UsageError(f"{name}: the measuring process cannot import it; write it into a file")
    return name

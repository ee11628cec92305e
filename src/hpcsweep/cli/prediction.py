"""Times that were not measured: `predict`, and how far to believe it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcsweep import extras
from hpcsweep.cli.answer import Answer, note
from hpcsweep.cli.common import renewed, request_of
from hpcsweep.cli.settings import variable
from hpcsweep.errors import UsageError

if TYPE_CHECKING:
    from hpcsweep.predict.tables import Measured
    from hpcsweep.submit.request import Request


@click.command()
@click.argument("names", nargs=-1, metavar="SPEC | --check SWEEP...")
@click.option(
    "--from",
    "sources",
    envvar=variable(("predict", "from")),
    metavar="SWEEP,...",
    help="Learn from the tables of these sweeps.",
)
@click.option("--cluster", metavar="NAME|PATH", default="local", help="Profile of the points.")
@click.option("--fill", is_flag=True, help="Keep measured times; predict the other points only.")
@click.option(
    "--check",
    is_flag=True,
    help="Leave out measured networks, sizes, algorithms and GPUs, predict them, show the errors.",
)
@click.pass_obj
def predict(  # noqa: PLR0913 - one argument per option
    results: Path,
    names: tuple[str, ...],
    sources: str | None,
    cluster: str,
    *,
    fill: bool,
    check: bool,
) -> Answer:
    """Predict the times of a sweep from the layers of measured sweeps.

    Writes predicted.csv and predicted_layers.csv into the folder of the sweep.

    \b
    hpcsweep predict more_sizes.yaml --from resnets,mobilenets
    hpcsweep predict --check resnets mobilenets
    """
    extras.need("predict", "hpcsweep predict")
    if check:
        from hpcsweep.predict import check as checking
        from hpcsweep.predict import tables
        from hpcsweep.store import runs

        found = checking.check(_told(tables.read(map(renewed, runs.of_sweeps(results, names)))))
        return Answer(record=found.to_json, text=found.text)
    if len(names) != 1 or not sources:
        raise UsageError(
            "name one sweep file and what to learn from: hpcsweep predict SPEC --from SWEEP"
        )
    from hpcsweep.spec import sweep_file
    from hpcsweep.submit.request import Options

    asked = request_of(sweep_file.load(names[0]), cluster, Options())
    return _predict(results, asked, sources.split(","), fill=fill)


def _predict(results: Path, asked: Request, sources: list[str], *, fill: bool) -> Answer:
    from hpcsweep.predict import sweep as predicting
    from hpcsweep.predict import tables
    from hpcsweep.store import runs
    from hpcsweep.store.rundir import RunDir
    from hpcsweep.submit import own_files

    known = runs.of_sweeps(results, [name for name in sources if name])
    learnt = _told(tables.read(map(renewed, known)))
    if other := own_files.other_than(learnt.own_files, asked):
        named = ", ".join(other)
        note(f"note: predicts {named} as it was measured, with other own files than there are now")
    run = RunDir(results / asked.sweep.name)
    points, controls = list(asked.points()), tables.controls(run, asked.device)
    found = predicting.predict(run.name, points, learnt, fill=fill, controls=controls)
    paths = found.write(run.path)
    return Answer(record=found.to_json, text=found.text, files=paths)


def _told(learnt: Measured) -> Measured:
    """Say what was left out of what is learnt from."""
    for line in learnt.notes:
        note(f"note: {line}")
    return learnt

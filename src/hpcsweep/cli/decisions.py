"""From tables to decisions: where the time goes, which algorithm to take, what got slower."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcsweep import catalog, extras, search_path
from hpcsweep.cli import answer
from hpcsweep.cli.answer import CommandResult, note
from hpcsweep.cli.common import (
    as_text,
    format_options,
    renewed,
    request_of,
    tables,
    tables_of,
    top_option,
    unreliable_option,
    where_option,
)
from hpcsweep.cli.settings import flag, variable
from hpcsweep.errors import UsageError
from hpcsweep.text import count, duration

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcsweep.analysis.best import Best
    from hpcsweep.analysis.best_by_shape import BestByShape
    from hpcsweep.analysis.formats import View
    from hpcsweep.forecast.leaving_out import Left
    from hpcsweep.forecast.tables import Measured
    from hpcsweep.submit.request import Request


@click.command()
@click.argument("sweep", required=False)
@click.option(
    "--by",
    type=click.Choice(["layer", "op", "shape"]),
    default="layer",
    show_default=True,
    help="Sum the calls of a layer, of a kind of layer, or of equal work.",
)
@where_option
@click.option(
    "--metric", metavar="COLUMN", default="mean_ms", show_default=True, help="Time of a call."
)
@top_option
@unreliable_option
@format_options
@click.pass_obj
def layers(  # noqa: PLR0913, PLR0917 - one argument per option
    results: Path,
    sweep: str | None,
    by: str,
    where: str,
    metric: str,
    top: int,
    format: str,
    *,
    unreliable: bool,
) -> CommandResult:
    """Show the slowest layers, with their share of the pass.

    \b
    hpcsweep layers quickstart --where input_size=224 --top 10
    hpcsweep layers quickstart --by op --format md
    """
    from hpcsweep.analysis import layers

    one = tables_of(results, sweep)
    found = layers.read(one, by=by, where=where, metric=metric, top=top, everything=unreliable)
    return tables([found], format)


@click.command()
@click.argument("sweep", required=False)
@where_option
@click.option(
    "--over",
    metavar="ALGORITHM",
    default="auto",
    show_default=True,
    help="The algorithm that a layer keeps unless another one is faster beyond the noise.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Write the maps as a sweep file; with --from also a picture (.png, .svg, .pdf).",
)
@flag(
    "--confirm",
    help="Measure each map here, in turns with the default: predicted against measured.",
)
@click.option(
    "--from",
    "source",
    envvar=variable(("best", "from")),
    metavar="NAME",
    help="Choose for --model by shapes, from the times of this sweep or import.",
)
@click.option("--model", help="With --from: the network.")
@click.option("--input-size", type=click.IntRange(min=1), default=224, help="With --from: pixels.")
@click.option("--batch-size", type=click.IntRange(min=1), default=1, help="With --from: images.")
@click.option("--dtype", default="float32", help="With --from: the type of numbers.")
@unreliable_option
@format_options
@click.pass_obj
def best(  # noqa: PLR0913, PLR0917 - one argument per option
    results: Path,
    sweep: str | None,
    where: str,
    over: str,
    out: Path | None,
    source: str | None,
    model: str | None,
    input_size: int,
    batch_size: int,
    dtype: str,
    format: str,
    *,
    confirm: bool,
    unreliable: bool,
) -> CommandResult:
    """Choose the fastest algorithm of each convolution.

    Predicts what a network with these would gain. The file that --out writes is a sweep which
    measures that. With --from, a network that nobody measured here gets a map, by the times that
    equal shapes took there, for example in a find-db of MIOpen.

    \b
    hpcsweep best quickstart --out map.yaml
    hpcsweep submit map.yaml --cluster local
    hpcsweep best quickstart --where input_size=224 --confirm
    hpcsweep best --from gfx90a_104 --model resnet50 --batch-size 32 --out map.yaml
    """
    from hpcsweep.analysis import best, output

    if source or model:
        if not (source and model) or sweep or confirm:
            raise UsageError(
                "--from NAME and --model belong together; SWEEP and --confirm do not go with them"
            )
        axes = {"model": model, "input_size": input_size, "batch_size": batch_size, "dtype": dtype}
        by_shape = _by_shape(results, source, axes, where)
        if out and out.suffix.lower() in output.PICTURES:
            extras.need("plot", "--out")
            from hpcsweep.analysis import plot_chart

            plot_chart.draw_layers(by_shape.chart(), out, log=True)
        elif out:
            output.write_sweep(out, by_shape.sweep_file())
        return tables([by_shape.view()], format, (out,))
    if confirm:
        extras.need("measure", "--confirm")
    one = tables_of(results, sweep)
    found = best.read(one, where=where, over=over, everything=unreliable)
    gains = any(found.maps.values())
    if out and gains:
        output.write_sweep(out, found.sweep_file())
    if (out or confirm) and not gains:
        done = " and ".join(filter(None, ("written" * bool(out), "measured" * confirm)))
        answer.note(f"note: nothing is {done}: no layer gains beyond the noise")
    view = _confirmed(found) if confirm and gains else found.view()
    return tables([view], format, (out if gains else None,))


def _by_shape(results: Path, source: str, axes: dict[str, Any], where: str) -> BestByShape:
    """Choose by the shapes of a network; the shapes need torch, but no arithmetic."""
    import json

    from hpcsweep.analysis import best_by_shape

    extras.need("measure", "--from")
    run = tables_of(results, source)
    from hpcsweep.measure import inputs

    search_path.use(search_path.of(Path("map.yaml")))  # as the map's file in this folder will
    shapes = inputs.shapes("inference", json.dumps({**catalog.axis_defaults("inference"), **axes}))
    return best_by_shape.read(run, axes, shapes.convolutions, where)


def _confirmed(found: Best) -> View:
    """Measure the maps on this machine, in turns with the default."""
    import tempfile

    from hpcsweep.analysis import best
    from hpcsweep.cli import pairs
    from hpcsweep.spec import sweep_file
    from hpcsweep.submit.request import Options

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "map.yaml"
        path.write_text(found.sweep_file(), encoding="utf-8")
        asked = request_of(sweep_file.load(path), "local", Options())
    best.check_device(found, asked.device)
    measured = []
    expected = duration(len(found.table) * pairs.SECONDS)
    answer.note(f"  measures {count(len(found.table), 'map')}, about {expected}")
    for number, (default, mixed) in enumerate(best.pairs(found, asked.points()), 1):
        answer.note(f"  measures {number} of {len(found.table)}")
        measured.append(pairs.measure(default, mixed, {"gpu": asked.device}))
    return best.confirmed(
        found, [one.default_ms for one in measured], [one.ratios for one in measured]
    )


@click.command()
@click.argument("first")
@click.argument("others", nargs=-1, metavar="[SECOND]...")
@where_option
@click.option(
    "--metric", metavar="COLUMN", default="median_ms", show_default=True, help="A time, or a rate."
)
@click.option(
    "--across",
    default="",
    metavar="COLUMN,...",
    help="Compare although these differ: dtype, tf32, a version of driver or library.",
)
@click.option(
    "--fail-on",
    metavar="slower:N%",
    help="End with code 3 if a row is SLOWER by at least so much; the same with faster.",
)
@flag(
    "--history",
    help="Show each configuration of FIRST over all its runs, three or more, with its steps.",
)
@unreliable_option
@format_options
@click.pass_obj
def compare(  # noqa: PLR0913, PLR0917 - one argument per option
    results: Path,
    first: str,
    others: tuple[str, ...],
    where: str,
    metric: str,
    across: str,
    fail_on: str | None,
    format: str,
    *,
    history: bool,
    unreliable: bool,
) -> CommandResult:
    """Say which rows are faster or slower than in FIRST, beyond noise.

    A side is SWEEP[@RUN][:column=value,...], where SWEEP is a name or a results folder and RUN a
    date (2026-11-20, or 2026-11-20T14:05), a number of `status`, or `previous`. Runs joined by +
    are repeats of one side. One sweep alone: its last run against the one before.

    \b
    hpcsweep compare quickstart
    hpcsweep compare resnet152_gemm:gpu=v100 resnet152_gemm:gpu=l40 --across driver_version
    hpcsweep compare nightly@20260101+nightly@20260102 nightly@20260103 --fail-on slower:5%
    """
    from hpcsweep.analysis import compare
    from hpcsweep.errors import Regression

    if history:
        if others or fail_on or across:
            raise UsageError(
                "--history takes one sweep, with --where, --metric, --unreliable and --format"
            )
        from hpcsweep.analysis import history as over

        return tables([over.read(results, first, metric, where, renewed,
                                 everything=unreliable).view()], format)  # fmt: skip
    limit = _limit(fail_on) if fail_on else None
    texts = (
        (first, *others) if others else [*compare.sides_of_runs(results, first, 2).values()][-2:]
    )
    read = [
        compare.read_side(results, text, where, everything=unreliable, renewed=renewed)
        for text in texts
    ]
    named = [name.strip() for name in across.split(",")]
    found = [compare.compare(read[0], side, metric=metric, across=named) for side in read[1:]]
    bad = [row for one in found for row in one.beyond(*limit)] if limit else []
    worse = f"{limit[0]} by at least {100 * limit[1]:g} %: {', '.join(bad)}" if limit else ""
    return CommandResult(
        record=lambda: {"comparisons": [one.view().to_json() for one in found]},
        text=lambda: as_text([one.view() for one in found], format),
        error=Regression(worse) if bad else None,
    )


def _limit(text: str) -> tuple[str, float]:
    """Return verdict and share of ``slower:5%``."""
    word, _, number = text.partition(":")
    share = number.removesuffix("%")
    if word not in {"slower", "faster"} or not share.replace(".", "", 1).isdigit():
        raise UsageError(f"--fail-on takes slower:5% or faster:5%, not '{text}'")
    return word.upper(), float(share) / 100


@click.command()
@click.argument("names", nargs=-1, metavar="SPEC | --check SWEEP...")
@click.option(
    "--from",
    "sources",
    envvar=variable(("predict", "from")),
    metavar="SWEEP,...",
    help="Learn from the tables of these sweeps alone; else from all that are here.",
)
@click.option("--cluster", metavar="NAME|PATH", default="local", help="Profile of the points.")
@flag("--fill", help="Keep measured times; predict the other points only.")
@flag(
    "--check",
    help="Leave out measured networks, sizes, algorithms and GPUs, predict them, show the errors.",
)
@click.option("--out", type=click.Path(path_type=Path), help="With --check: write a picture.")
@click.pass_obj
def predict(  # noqa: PLR0913 - one argument per option
    results: Path,
    names: tuple[str, ...],
    sources: str | None,
    cluster: str,
    out: Path | None,
    *,
    fill: bool,
    check: bool,
) -> CommandResult:
    """Predict the times of a sweep from the layers of measured sweeps.

    Writes predicted.csv and predicted_layers.csv into the folder of the sweep.

    \b
    hpcsweep predict more_sizes.yaml
    hpcsweep predict more_sizes.yaml --from resnets,mobilenets
    hpcsweep predict --check resnets mobilenets --out errors.png
    """
    extras.need("predict", "hpcsweep predict")
    if check:
        drawn = _drawing(out) if out else None
        from hpcsweep.forecast import check as checking
        from hpcsweep.forecast import tables
        from hpcsweep.store import runs

        found = checking.check(_told(tables.read(map(renewed, runs.of_sweeps(results, names)))))
        if out and drawn:
            drawn(found.left, out)
        return CommandResult(record=found.to_json, text=found.text, files=[out] if out else [])
    if out:
        raise UsageError("--out goes with --check; a prediction is written to the sweep's folder")
    if len(names) != 1:
        raise UsageError("name one sweep file: hpcsweep predict SPEC [--from SWEEP,...]")
    from hpcsweep.spec import sweep_file
    from hpcsweep.submit.request import Options

    asked = request_of(sweep_file.load(names[0]), cluster, Options())
    return _predict(results, asked, sources, fill=fill)


def _drawing(out: Path) -> Callable[[Sequence[Left], Path], None]:
    """Return what draws errors, where a picture can be written."""
    from hpcsweep.analysis import output

    extras.need("plot", "--out")
    output.check_picture(out)
    from hpcsweep.forecast import check_chart

    return check_chart.draw


def _predict(results: Path, asked: Request, sources: str | None, *, fill: bool) -> CommandResult:
    from hpcsweep.forecast import past_rows, tables
    from hpcsweep.forecast import sweep as predicting
    from hpcsweep.store import runs
    from hpcsweep.store.rundir import RunDir
    from hpcsweep.submit import check_inputs

    if sources:
        named = runs.of_sweeps(results, [name for name in sources.split(",") if name])
        learnt = _told(tables.read(map(renewed, named)))
    else:
        learnt = _told(tables.read_all(results, map(renewed, runs.of_sweeps(results, ()))))
    if other := check_inputs.other_than(learnt.own_files, asked):
        changed = ", ".join(other)
        note(
            f"note: predicts {changed} as it was measured, with other own files than there are now"
        )
    run = RunDir(results / asked.sweep.name)
    points, controls = list(asked.points()), past_rows.controls(run, asked.device)
    found = predicting.predict(run.name, points, learnt, fill=fill, controls=controls)
    paths = found.write(run.path)
    return CommandResult(record=found.to_json, text=found.text, files=paths)


def _told(learnt: Measured) -> Measured:
    """Say what was left out of what is learnt from."""
    for line in learnt.notes:
        note(f"note: {line}")
    return learnt

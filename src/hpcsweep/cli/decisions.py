"""From tables to decisions: where the time goes, which algorithm to take, what got slower."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcsweep import extras, messages
from hpcsweep.cli import common
from hpcsweep.cli.answer import Answer
from hpcsweep.cli.settings import COUNT, PATH, flag, option
from hpcsweep.errors import UsageError

if TYPE_CHECKING:
    from hpcsweep.analysis.best import Best
    from hpcsweep.forecast.training_data import Measured
    from hpcsweep.submit.request import Request


@click.command()
@click.argument("sweep", required=False)
@option(
    "--by",
    "Sum the calls of a layer, of a kind of layer, or of equal work.",
    type=click.Choice(["layer", "op", "shape"]),
    default="layer",
    show_default=True,
)
@common.where_option
@option(
    "--metric COLUMN",
    "Time of a call. The mean is the median where a few slow passes moved it.",
    default="",
    show_default="the mean",
)
@common.top_option
@common.unreliable_option
@common.format_options
@click.pass_obj
def layers(
    results: Path,
    /,
    sweep: str | None,
    format: str,
    **options: Any,  # of `slowest_layers`, by the same names
) -> Answer:
    """Show the slowest layers, with their share of the pass.

    \b
    hpcsweep layers quickstart --where input_size=224 --top 10
    hpcsweep layers quickstart --by op --format md
    """
    from hpcsweep.analysis import layers

    view = layers.slowest_layers(common.tables_of(results, sweep), **options)
    return common.tables([view], format)


@click.command()
@click.argument("sweep", required=False)
@common.where_option
@option(
    "--over ALGORITHM",
    "The algorithm that a layer keeps unless another one is faster beyond the noise.",
    default="auto",
    show_default=True,
)
@option("--out", "Write the maps as a sweep file.", type=PATH)
@option("--from NAME", "Choose for --model by shapes, from the times of this sweep or import.")
@option("--model", "With --from: the network.")
@option("--input-size", "With --from: pixels.", type=COUNT, default=224)
@option("--batch-size", "With --from: images.", type=COUNT, default=1)
@option("--dtype", "With --from: the type of numbers.", default="float32")
@common.unreliable_option
@common.format_options
@click.pass_obj
def best(  # noqa: PLR0913, PLR0917 - one argument per option
    results: Path,
    /,
    sweep: str | None,
    where: str,
    over: str,
    out: Path | None,
    format: str,
    *,
    unreliable: bool,
    **network: Any,  # of --from
) -> Answer:
    """Choose the fastest algorithm of each convolution.

    Predicts what a network with these would gain. The file that --out writes is a sweep which
    measures that. With --from, a network that nobody measured here gets a map, by the times that
    equal shapes took there, for example in a find-db of MIOpen.

    \b
    hpcsweep best quickstart --out map.yaml
    hpcsweep submit map.yaml --cluster local
    hpcsweep best --from gfx90a_104 --model resnet50 --batch-size 32 --out map.yaml
    """
    from hpcsweep.analysis import best

    source = network.pop("from")  # what is left are axes
    if source or network["model"]:
        if not (source and network["model"]) or sweep:
            raise UsageError("--from NAME and --model belong together; SWEEP does not go with them")
        choice = _by_shape(results, source, network, where)
    else:
        sweep_dir = common.tables_of(results, sweep)
        choice = best.best_of_sweep(sweep_dir, where=where, over=over, unreliable=unreliable)
    gains = [name for name, layers in choice.maps.items() if layers]
    if out and (gains or source):
        best.write_sweep(out, choice.sweep_file())
        _tell_use(out, gains)
    elif out:
        messages.note("nothing is written: no layer gains beyond the noise")
        out = None
    return common.tables([choice.view], format, (out,))


def _tell_use(out: Path, maps: Sequence[str]) -> None:
    """Tell the two lines that use a map; of equal maps the file has the first."""
    which = f', name="{maps[0]}"' if len(maps) > 1 else ""
    lines = "import hpcsweep", f'with hpcsweep.algorithms(model, "{out}"{which}): model(images)'
    messages.note("\n    ".join(("a program of your own runs it so:", *lines)))


def _by_shape(results: Path, name: str, axes: dict[str, Any], where: str) -> Best:
    """Choose by the shapes of a network; the shapes need torch, but no arithmetic."""
    import json

    from hpcsweep import catalog, sources
    from hpcsweep.analysis import best

    extras.need("measure", "--from")
    sweep_dir = common.tables_of(results, name)
    from hpcsweep.measure import trials

    sources.look_in(sources.folders_for(Path("map.yaml")))  # as the map's file in this folder will
    shapes = trials.shapes("inference", json.dumps({**catalog.axis_defaults("inference"), **axes}))
    return best.best_of_shapes(sweep_dir, axes, shapes.convolutions, where)


@click.command()
@click.argument("first")
@click.argument("others", nargs=-1, metavar="[SECOND]...")
@common.where_option
@option("--metric COLUMN", "A time, or a rate.", default="median_ms", show_default=True)
@option(
    "--across COLUMN,...",
    "Compare although these differ: dtype, tf32, a version of driver or library.",
    default="",
)
@option(
    "--fail-on slower:N%",
    "End with code 3 if a row is SLOWER by at least so much; the same with faster.",
)
@common.unreliable_option
@common.format_options
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
    unreliable: bool,
) -> Answer:
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

    limit = _limit(fail_on) if fail_on else None  # before anything is read
    last_two = [] if others else compare.sides_of_last_runs(results, first)
    base, *sides = (
        compare.read_side(results, text, where, unreliable=unreliable, renewed=common.renewed)
        for text in last_two or (first, *others)
    )
    differing = common.listed(across)
    compared = [
        compare.compare_sides(base, side, metric=metric, across=differing) for side in sides
    ]
    views = [each.view() for each in compared]
    error = None
    if limit:
        verdict, share = limit
        bad = [row for each in compared for row in each.beyond(verdict, share)]
        if bad:
            error = Regression(f"{verdict} by at least {100 * share:g} %: {', '.join(bad)}")
    return Answer(
        record=lambda: {"comparisons": [view.to_json() for view in views]},
        text=lambda: common.as_text(views, format),
        error=error,
    )


def _limit(text: str) -> tuple[str, float]:
    word, _, number = text.partition(":")
    share = number.removesuffix("%")
    if word not in {"slower", "faster"} or not share.replace(".", "", 1).isdigit():
        raise UsageError(f"--fail-on takes slower:5% or faster:5%, not '{text}'")
    return word.upper(), float(share) / 100


@click.command()
@click.argument("names", nargs=-1, metavar="SPEC | --check SWEEP...")
@option(
    "--from SWEEP,...", "Learn from the tables of these sweeps alone; else from all that are here."
)
@option("--cluster NAME|PATH", "Profile of the points.", default="local")
@flag("--fill", "Keep measured times; predict the other points only.")
@flag(
    "--check",
    "Leave out measured networks, sizes, algorithms and GPUs, predict them, show the errors.",
)
@option(
    "--leave COLUMN=VALUE,...",
    "With --check: leave out these values of a column together, such as model=resnet152; `gpu=all` "
    "leaves out each in turn.",
    default="",
)
@option("--out", "With --check: write a row for each left-out point (CSV).", type=PATH)
@click.pass_obj
def predict(  # noqa: PLR0913 - one argument per option
    results: Path,
    /,
    names: tuple[str, ...],
    cluster: str,
    out: Path | None,
    *,
    fill: bool,
    check: bool,
    **others: Any,  # --from, --leave
) -> Answer:
    """Predict the times of a sweep from the layers of measured sweeps.

    Writes predicted.csv and predicted_layers.csv into the folder of the sweep.

    \b
    hpcsweep predict more_sizes.yaml
    hpcsweep predict more_sizes.yaml --from resnets,mobilenets
    hpcsweep predict --check resnets mobilenets
    hpcsweep predict --check theirs --leave gpu=all --out errors.csv
    """
    extras.need("predict", "hpcsweep predict")
    if check:
        return _check(results, names, out, others["leave"])
    if others["leave"]:
        raise UsageError("--leave goes with --check")
    if out:
        raise UsageError("--out goes with --check; a prediction is written to the sweep's folder")
    if len(names) != 1:
        raise UsageError("name one sweep file: hpcsweep predict SPEC [--from SWEEP,...]")
    from hpcsweep.spec import sweep_file

    asked = common.request_of(sweep_file.load(names[0]), cluster)
    return _predict(results, asked, others["from"], fill=fill)


def _check(results: Path, names: Sequence[str], out: Path | None, leave: str) -> Answer:
    from hpcsweep.forecast import check

    if out:
        check.refuse_picture(out)  # before the fits, which take minutes
    errors = check.check(_learnt(results, names), leave)
    if out:
        check.write(errors.left, out)
    return Answer(record=errors.to_json, text=errors.text, files=[out])


def _predict(results: Path, asked: Request, teachers: str | None, *, fill: bool) -> Answer:
    from hpcsweep import sources
    from hpcsweep.forecast import past_rows, prediction
    from hpcsweep.spec import expansion
    from hpcsweep.store.folders import SweepDir
    from hpcsweep.submit import comparison, request

    learnt = _learnt(results, common.listed(teachers) if teachers else None)
    if other := comparison.other_than(learnt.own_files, asked):
        changed = f"{', '.join(other)} as it was measured"
        messages.note(f"predicts {changed}, with other own files than there are now")
    sources.look_in(sources.folders_for(asked.sweep.path))
    sweep_dir = SweepDir(results / asked.sweep.name)
    points = list(asked.points())
    if asked.rehearsal:  # nothing is measured here, so the answer is about the GPUs that it names
        gpus = request.named_gpus(asked.sweep)
        points = list(chain.from_iterable(expansion.expand(asked.sweep, gpu=gpu) for gpu in gpus))
    controls = past_rows.controls(sweep_dir, asked.device)
    predicted = prediction.predict(sweep_dir.name, points, learnt, fill=fill, controls=controls)
    paths = predicted.write(sweep_dir.path)
    return Answer(record=predicted.to_json, text=predicted.text, files=paths)


def _learnt(results: Path, names: Sequence[str] | None) -> Measured:
    """Read sweeps to learn from, by default all that teach something; say what is left out."""
    from hpcsweep.forecast import training_data
    from hpcsweep.store import runs

    sweeps = map(common.renewed, runs.of_sweeps(results, names or ()))
    learnt = (
        training_data.read_all(results, sweeps)
        if names is None
        else training_data.read_sweeps(sweeps)
    )
    for line in learnt.notes:
        messages.note(f"{line}")
    return learnt

"""Times that were not measured: `predict`, and how far to believe it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hpcsweep.cli.common import json_option, runs
from hpcsweep.errors import UsageError


@click.command()
@click.argument("names", nargs=-1, metavar="SWEEP...")
@click.option(
    "--check",
    is_flag=True,
    help="Leave out measured networks, sizes, algorithms and GPUs, predict them, show the errors.",
)
@json_option
@click.pass_obj
def predict(results: Path, names: tuple[str, ...], *, check: bool, as_json: bool) -> None:
    """Predict times from the layers of measured sweeps.

    \b
    hpcsweep predict --check resnets mobilenets
    """
    _need_the_extra()
    from hpcsweep.predict import check as checking
    from hpcsweep.predict import tables

    if not check:
        raise UsageError("what is to be done? `hpcsweep predict --check SWEEP...` shows errors")
    found = checking.check(tables.read(runs(results, names)))
    print(json.dumps(found.to_json()) if as_json else found.text())


def _need_the_extra() -> None:
    """Raise `UsageError` where scikit-learn, which is optional, is not installed."""
    try:
        import sklearn  # noqa: F401
    except ImportError as error:
        text = "predict needs scikit-learn; install it: pip install 'hpcsweep[predict]'"
        raise UsageError(text) from error

"""Extras: those of pyproject.toml, and what is told where one is missing."""

from __future__ import annotations

import sys

import pytest
from packaging.requirements import Requirement

from hpcsweep import extras
from hpcsweep.catalog import LAUNCHERS
from hpcsweep.catalog.columns import OVERALL
from hpcsweep.errors import MissingDependency
from paths import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OPTIONAL = {
    name: {one.name for one in map(Requirement, lines)} - {"hpcsweep"}
    for name, lines in PROJECT["optional-dependencies"].items()
}


def test_each_extra_of_pip_is_known_with_its_packages():
    """`all` is all of them."""
    known = {name: {*extra.packages.values()} for name, extra in extras.EXTRAS.items()}
    assert {name: packages for name, packages in OPTIONAL.items() if name != "all"} == known
    (everything,) = map(Requirement, PROJECT["optional-dependencies"]["all"])
    assert everything.extras == set(known)


def test_columns_that_stay_empty_are_columns():
    """The doctor names them."""
    words = extras.EXTRAS["nvidia"].serves.replace(",", " ").replace(":", " ").split()
    named = {word for word in words if "_" in word}
    assert len(named) == 8
    assert named <= {column.name for column in OVERALL}


def test_launchers_name_extras_that_there_are():
    """A profile that takes one without its packages is refused with the extra."""
    assert {one.extra for one in LAUNCHERS.values()} - {""} <= extras.EXTRAS.keys()


def test_a_package_that_is_missing_is_told_with_its_extra(monkeypatch):
    """As pip calls it."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert extras.lacking("predict") == ["scikit-learn"]
    with pytest.raises(MissingDependency) as caught:
        extras.need("predict", "predict")
    assert str(caught.value) == (
        "predict needs scikit-learn, which is not installed: pip install 'hpcsweep[predict]'"
    )


def test_a_module_of_no_extra_is_none_of_ours():
    """A network of the user's own may import anything."""
    assert extras.missing(ModuleNotFoundError("no", name="mine.net"), "submit") is None
    told = extras.missing(ModuleNotFoundError("no", name="torch.nn"), "verify")
    assert "verify needs torch" in str(told)

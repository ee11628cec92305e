"""Errors are for people: each class has its exit code, and a misspelling its nearest name."""

from __future__ import annotations

import pytest

from hpcsweep import errors

CODES = {
    "HpcsweepError": 1, "BadInput": 2, "SpecError": 2, "ProfileError": 2, "ConfigError": 2,
    "UsageError": 2, "PointsFailed": 3, "Implausible": 3, "Regression": 3, "Incomplete": 4,
    "Refused": 5, "ResultsError": 6, "DamagedResults": 6, "Unread": 6, "Busy": 6,
    "SchedulerError": 7, "PartlySubmitted": 8, "MissingDependency": 9, "TargetMissed": 10,
    "Occupied": 11, "NoCodeForGpu": 12, "GpuFails": 13, "CommandFailed": 3,
}  # fmt: skip


def test_scripts_may_rely_on_the_exit_codes():
    """Each error has the code that it always had; one without its own has that of its base."""
    classes = (each for each in vars(errors).values() if isinstance(each, type))
    errors_here = [each for each in classes if issubclass(each, errors.HpcsweepError)]
    assert {each.__name__: each.exit_code for each in errors_here} == CODES


@pytest.mark.parametrize(
    ("found", "allowed", "told"),
    [
        ("resnet81", ["resnet18", "vgg16"], "; did you mean 'resnet18'?"),
        ("GEMM", ["gemm", "fft"], "; did you mean 'gemm'?"),
        ("l4", ["l40", "L40"], "; did you mean 'l40'?"),
        ("tea", ["coffee"], ""),
        ("tea", [], ""),
    ],
)
def test_the_nearest_spelling_is_offered_whatever_its_case(found, allowed, told):
    """Of two spellings the first; nothing where nothing is near."""
    assert errors.suggest(found, allowed) == told


def test_of_an_exception_one_line_is_told():
    """Its first one, or its type where it says nothing."""
    assert errors.first_line(ValueError("\nbroken\nthere")) == "broken"
    assert errors.first_line(ValueError()) == "ValueError"

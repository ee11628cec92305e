"""What can go wrong with an algorithm before anything is timed."""

from __future__ import annotations

import pytest

from hpcsweep.conv.algorithm_errors import (
    AlgorithmError,
    LibraryUnusable,
    UnknownAlgorithm,
    Unsupported,
)
from hpcsweep.errors import HpcsweepError, UsageError


def test_an_unknown_name_is_told_with_the_nearest_and_with_all() -> None:
    """Two lines, and the exit code of bad input."""
    error = UnknownAlgorithm("winogard")
    first, second = str(error).splitlines()
    assert "'winogard'" in first
    assert "did you mean 'winograd'" in first
    assert "implicit_precomp_gemm" in second
    assert isinstance(error, UsageError)


@pytest.mark.parametrize("kind", [Unsupported, AlgorithmError])
def test_a_refusal_names_some_layers_and_counts_the_rest(
    kind: type[Unsupported | AlgorithmError],
) -> None:
    """Two lines even for a network of hundreds of layers."""
    error = kind([(f"layer{i}", "fft: stride 2x2") for i in range(40)], 53)
    text = str(error)
    assert text.startswith("40 of 53 convolutions cannot run as asked: layer0: fft: stride 2x2; ")
    assert "layer2: fft: stride 2x2; and 37 more\n" in text
    assert "layer3" not in text
    assert "unsupported: fallback" in text
    assert len(error.refused) == 40


def test_a_network_that_is_one_layer_is_called_the_network() -> None:
    """Its layer has no name."""
    text = str(Unsupported([("", "fft: stride 2x2")], 1))
    assert "the network: fft: stride 2x2" in text


def test_a_library_that_cannot_be_used_is_an_error_of_ours() -> None:
    """The user sees its text unchanged."""
    assert issubclass(LibraryUnusable, HpcsweepError)

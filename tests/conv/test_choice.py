"""What a request means for each call: names, maps, and what cannot be done."""

from __future__ import annotations

import pytest

from hpcsweep import catalog
from hpcsweep.conv import choice
from hpcsweep.conv.backend import UnknownAlgorithm
from hpcsweep.conv.choice import AlgorithmError, Unsupported
from hpcsweep.conv.reference import Reference
from hpcsweep.conv.shape import ConvShape

SMALL = ConvShape(1, 8, 14, 14, 8, 3, 3, pad_h=1, pad_w=1)
STRIDED = ConvShape(1, 8, 14, 14, 8, 3, 3, 2, 2, 1, 1)
POINTWISE = ConvShape(1, 8, 14, 14, 8, 1, 1)
BACKEND = Reference("cpu")


def test_the_most_specific_pattern_that_matches_wins_in_any_order() -> None:
    """Held against the layer's name and against the shape's key."""
    request = {"stem": "direct", "*_3x3_s1x1_*": "winograd", "layer?.*": "gemm", "default": "fft"}
    assert choice.requested(request, "stem", SMALL.unique_key) == "direct"
    assert choice.requested(request, "layer1.0", SMALL.unique_key) == "winograd"
    assert choice.requested(request, "layer1.0", POINTWISE.unique_key) == "gemm"
    assert choice.requested(request, "head", POINTWISE.unique_key) == "fft"


def test_default_is_last_wherever_it_stands() -> None:
    """A file may list it first."""
    assert choice.requested({"default": "fft", "stem": "gemm"}, "stem", SMALL.unique_key) == "gemm"


def test_a_map_without_default_leaves_the_rest_to_the_framework() -> None:
    """`auto` is what a layer has that nothing matches; a layer may be called `default`, too."""
    assert choice.requested({"stem": "gemm"}, "head", SMALL.unique_key) == catalog.AUTO
    assert choice.requested({}, "default", SMALL.unique_key) == catalog.AUTO


def test_patterns_that_match_nothing_are_told() -> None:
    """They are probably misspelt."""
    calls = [("stem", STRIDED.unique_key), ("layer1.0", SMALL.unique_key)]
    request = {"stem": "gemm", "layr*": "gemm", "*_5x5_*": "gemm", "default": "auto"}
    assert choice.idle_patterns(request, calls) == ["layr*", "*_5x5_*"]
    assert choice.idle_patterns("gemm", calls) == []


@pytest.mark.parametrize(
    ("algorithm", "meant"),
    [("winogard", "winograd"), ("Implicit_GEMM", "implicit_gemm"), ({"*": "ftt"}, "fft")],
)
def test_a_misspelt_name_is_refused_with_the_nearest(algorithm: object, meant: str) -> None:
    """Two lines: what was wrong, and what there is."""
    with pytest.raises(UnknownAlgorithm, match=f"did you mean '{meant}'") as caught:
        choice.check(algorithm)  # type: ignore[arg-type]
    assert str(caught.value).count("\n") == 1
    assert caught.value.exit_code == 2


def test_every_name_of_the_taxonomy_is_accepted() -> None:
    """Alone and in a map."""
    for name in catalog.ALGORITHMS:
        choice.check(name)
    choice.check({name: name for name in catalog.ALGORITHMS})


def test_what_can_be_done_is_done() -> None:
    """No reason, no fallback."""
    made = choice.decide("gemm", "stem", SMALL, BACKEND, "cpu")
    assert (made.requested, made.used, made.backend) == ("gemm", "gemm", "reference")
    assert (made.fallback, made.reason) == (False, None)


def test_what_cannot_be_done_falls_back_and_says_why() -> None:
    """The framework's default runs, under its own name."""
    made = choice.decide("winograd", "stem", STRIDED, BACKEND, "cpu")
    assert (made.requested, made.used, made.backend) == ("winograd", "auto", "framework")
    assert made.fallback
    assert made.reason == "stride 2x2: Winograd needs 1x1"


def test_autotune_without_an_autotuner_falls_back() -> None:
    """A map may ask for it in one layer; what runs is the framework's default."""
    made = choice.decide({"stem": "autotune"}, "stem", SMALL, BACKEND, "cpu")
    assert (made.used, made.fallback) == ("auto", True)
    assert made.reason == "the framework has no autotuner on cpu"
    there = choice.decide("autotune", "stem", SMALL, BACKEND, "cuda")
    assert (there.used, there.reason) == ("autotune", None)


def test_a_call_is_tuned_only_where_none_of_its_shape_runs_the_default():
    """Both would run the plan of whichever came first; the row says that one could not be had."""
    made = [
        choice.LayerChoice(layer, shape, name, name, "framework")
        for layer, shape, name in (
            ("a", SMALL, "autotune"),
            ("b", SMALL, "auto"),
            ("c", STRIDED, "autotune"),
            ("d", STRIDED, "gemm"),
        )
    ]
    found = choice.one_plan_per_shape(made)
    assert [one.used for one in found] == ["auto", "auto", "autotune", "gemm"]
    assert (found[0].fallback, "one plan for both" in found[0].reason) == (True, True)


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

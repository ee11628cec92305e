"""What is right line by line and wrong together: each complaint has line, key and a way out."""

from __future__ import annotations

import json
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from hpcsweep.errors import SpecError
from hpcsweep.spec import expansion, sweep_file

if TYPE_CHECKING:
    from pathlib import Path

HEAD = """\
workload: inference
axes:
  model: [resnet18, resnet50]
  input_size: [64, 128, 224]
  batch_size: [1, 2, 4]
  algorithm: [gemm, winograd]
"""  # six lines, so what is added begins in line 7


def _load(folder: Path, text: str) -> sweep_file.Sweep:
    path = folder / "sweep.yaml"
    path.write_text(text)
    return sweep_file.load(path)


def _complaint(folder: Path, text: str) -> str:
    with pytest.raises(SpecError) as caught:
        _load(folder, dedent(text))
    found = str(caught.value)
    assert found.startswith(f"{folder / 'sweep.yaml'}:")
    assert len(found.splitlines()) <= 2
    return found.removeprefix(f"{folder / 'sweep.yaml'}:")


@pytest.mark.parametrize(
    ("added", "wanted"),
    [
        # exclude
        ("exclude: [{gpu: l40}]", "7: exclude[0].gpu: gpu is no axis of this sweep, which has"),
        (
            "exclude:\n  - {algoritm: gemm}",
            "8: exclude[0].algoritm: unknown key, allowed are model",
        ),
        ("exclude:\n  - {algoritm: gemm}", "did you mean 'algorithm'?"),
        (
            "exclude: [{input_size: 65}]",
            "7: exclude[0].input_size: input_size has no 65, it has 64, 128, 224",
        ),
        ("exclude: [{model: resnet5}]", "did you mean 'resnet50'?"),
        ("exclude: [{algorithm: fft}]", "algorithm has no 'fft', it has gemm, winograd"),
        ("exclude: [{algorithm: wino}]", "found 'wino', allowed are auto"),
        ("exclude: [{input_size: {lt: 64}}]", "exclude[0]: matches no combination"),
        ("exclude:\n  - {model: resnet18}\n  - {model: resnet50}", "empty sweep: every"),
        ("exclude: [{}]", "7: exclude[0]: found an empty map"),
        ("exclude: [{input_size: {}}]", "found an empty map, allowed are lt, le, gt, ge, not"),
        (
            "exclude: [{input_size: {less: 65}}]",
            "input_size.less: unknown key, allowed are lt, le, gt, ge, not",
        ),
        ("exclude: [{input_size: {lt: small}}]", "input_size.lt: found 'small', needs a number"),
        ("exclude: [{algorithm: {lt: gemm}}]", "algorithm.lt: unknown key, allowed are not"),
        (
            "exclude: [{input_size: {not: 64, lt: 9}}]",
            "found a map, in which `not` must stand alone",
        ),
        ("exclude: [{tf32: 1}]", "exclude[0].tf32: found 1, needs true or false"),
        ("exclude: [{input_size: []}]", "found an empty list, needs 1 or more entries"),
        ("exclude: [{algorithm: [{conv1: gemm}]}]", "found a map, allowed are auto, autotune"),
        # zip
        ("zip: [[model]]", "7: zip[0]: found a list, needs 2 or more entries"),
        ("zip: [[model, input_size]]", "model has 2, input_size has 3 values; axes that move"),
        ("zip: [[model, dtype]]", "zip[0][1]: dtype has no values under `axes`, needs model"),
        ("zip: [[model, dtyp]]", "zip[0][1]: found 'dtyp', allowed are model"),
        (
            "zip:\n  - [model, algorithm]\n  - [algorithm, model]",
            "9: zip[1][0]: algorithm is named already in line 8",
        ),
        # when
        ("when: [{if: {gpu: l40}, axes: {seed: [1]}}]", "when[0].if.gpu: gpu is no axis"),
        ("when: [{if: {model: resnet18}, axes: {}}]", "when[0].axes: found an empty map"),
        ("when: [{if: {model: resnet34}, axes: {seed: [1]}}]", "model has no 'resnet34'"),
        ("when: [{if: {model: resnet18}, axes: {seed: [1, 1]}}]", "seed[1]: 1 is repeated"),
        ("when: [{if: {input_size: {gt: 224}}, axes: {seed: [1]}}]", "when[0]: matches no"),
        (
            (
                "when:\n  - {if: {model: resnet18}, axes: {seed: [1]}}\n"
                "  - {if: {seed: 1}, axes: {dtype: [float16]}}"
            ),
            "9: when[1].if.seed: seed is set by a rule itself (line 8)",
        ),
        (
            "zip: [[model, algorithm]]\nwhen: [{if: {input_size: 64}, axes: {model: [vgg16]}}]",
            "8: when[0].axes.model: model moves with a zip group",
        ),
        # include
        ("include: [{input_size: 64}]", "7: include[0].model: is missing"),
        ("include: [{model: resnet19}]", "include[0].model: found 'resnet19', needs a torchvision"),
        ("include: [{model: resnet18, input_size: big}]", "found 'big', needs a whole number"),
        (
            "include:\n  - {model: resnet34}\n  - {model: resnet34, algorithm: auto}",
            "9: include[1]: the same point as in line 8",
        ),
        (
            "include: [{model: resnet18, algorithm: gemm}]",
            "7: include[0]: the axes have this point already",
        ),
        (
            "include: [{model: inception_v3, input_size: 74}]",
            "7: include[0].input_size: found 74, inception_v3 needs at least 75",
        ),
        (
            "include: [{model: inception_v3, input_size: 299, input_width: 74}]",
            "7: include[0].input_width: found 74, inception_v3 needs at least 75",
        ),
    ],
)
def test_a_rule_that_cannot_be_meant_is_named_with_its_line(
    tmp_path: Path, added: str, wanted: str
) -> None:
    """File, line, key, what was found, what is allowed, the nearest spelling."""
    assert wanted in _complaint(tmp_path, HEAD + added + "\n")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            """\
            workload: inference
            axes:
              model: [resnet18, vgg16]
              input_size: [16, 64, 31]
            exclude:
              - {model: vgg16, input_size: 16}
            """,
            "4: axes.input_size[2]: found 31, vgg16 needs at least 32; correct the size or",
        ),
        (
            """\
            workload: inference
            axes:
              model: [vgg16]
              input_size: {start: 8, stop: 64, num: 8}
            """,
            "4: axes.input_size: found 8, vgg16 needs at least 32",
        ),
        (
            """\
            workload: inference
            axes:
              model: [resnet18, vit_b_16]
            when:
              - if: {model: vit_b_16}
                axes:
                  input_size: [224, 256]
            """,
            "7: when[0].axes.input_size[1]: found 256, vit_b_16 takes 224 only",
        ),
    ],
)
def test_an_image_that_does_not_fit_its_network_is_told_before_anything_runs(
    tmp_path: Path, text: str, wanted: str
) -> None:
    """The size that really occurs with the model is named where it is written."""
    assert wanted in _complaint(tmp_path, text)


@pytest.mark.parametrize(
    "text",
    [
        """\
        workload: inference
        axes:
          model: [resnet18, vgg16]
          input_size: [16, 64]
        exclude: [{model: vgg16, input_size: {lt: 32}}]
        """,
        """\
        workload: inference
        axes:
          model: [vit_b_16]
          input_size: [384]
          weights: [IMAGENET1K_SWAG_E2E_V1]
        """,
        """\
        workload: inference
        axes:
          model: ["my.package:network"]
          input_size: [3]
        """,
        """\
        workload: noop
        axes:
          model: [vgg16]
          input_size: [1]
        """,
        """\
        workload: training
        axes: {model: [resnet18]}
        include: [{model: vgg16}, {model: vit_b_16}]
        """,
    ],
)
def test_a_size_that_is_excluded_or_unknown_to_matter_is_no_reason_to_complain(
    tmp_path: Path, text: str
) -> None:
    """Excluded combinations, own sizes of weights, own networks, no-ops, points without a width."""
    assert len(expansion.expand(_load(tmp_path, dedent(text))))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("workload: noop\n", ":1: axes: an empty sweep: has no axes"),
        ("workload: noop\naxes: {}\n", ":2: axes: an empty sweep: has no axes"),
        ("workload: noop\naxes: {seed: [1]}\n", ":2: axes: `model` is missing"),
        ("workload: noop\naxes:\n  model: [a, a]\n", ":3: axes.model[1]: 'a' is repeated"),
        (
            "workload: command\nrun: 'true {k}'\naxes:\n  k: [1, '1']\n",
            ":4: axes.k[1]: '1' is repeated",
        ),
        (
            (
                "workload: noop\naxes:\n  model: [a]\n"
                "  input_size: {start: 1, stop: 4000, step: 1}\n"
                "  batch_size: {start: 1, stop: 4000, step: 1}\n"
            ),
            ":2: axes: 16,000,000 points, at most 10,000,000 in one sweep; shorten an axis",
        ),
        (
            (
                "workload: noop\naxes:\n  model: [a]\n"
                "  input_size: {start: 1, stop: 10000, step: 1}\n"
                "  batch_size: {start: 1, stop: 10000, step: 1}\n"
                "exclude: [{input_size: {gt: 5}}, {input_size: {le: 5}, batch_size: {gt: 1}}]\n"
                "include: [{model: a, input_size: 5}]\n"
            ),
            ":7: include[0]: the axes have this point already; remove it here",
        ),
        (
            (
                "workload: noop\naxes:\n  model: [a]\n"
                "  input_size: {start: 1, stop: 100000000000, step: 1}\n"
            ),
            ":4: axes.input_size.step: found 1, which makes 100,000,000,000 values, at most",
        ),
        (
            (
                "workload: noop\naxes:\n  model: [a, b]\n  seed: [1, 1]\nzip: [[model, seed]]\n"
                "include: [{model: a, seed: 1}]\n"
            ),
            ":6: include[0]: the axes have this point already",
        ),
        (
            "workload: noop\naxes:\n  model: [a, a]\n  seed: [1, 1]\nzip: [[model, seed]]\n",
            ":5: zip[0]: rows 1 and 2 are the same point",
        ),
    ],
)
def test_a_sweep_is_neither_empty_nor_endless_nor_does_it_repeat_itself(
    tmp_path: Path, text: str, wanted: str
) -> None:
    """Counted, not enumerated."""
    assert wanted in ":" + _complaint(tmp_path, text)


AXES = """\
workload: noop
axes:
  model: [a]
  input_size: {start: 1, stop: 3000, step: 1}
  batch_size: {start: 1, stop: 1100, step: 1}
  seed: {start: 1, stop: 101, step: 1}
"""


@pytest.mark.parametrize(
    ("rules", "wanted"),
    [
        (
            [{"input_size": {"gt": 1500 + i}} for i in range(1700)],
            "7: exclude: 1,700 conditions ask 5,100,000 times for a value of an axis",
        ),
        (
            [{"input_size": i, "batch_size": i, "seed": i} for i in range(1, 102)],
            "7: exclude: tell 1,050,804 kinds of combinations apart, at most 1,000,000",
        ),
    ],
)
def test_conditions_that_would_take_minutes_are_refused(
    tmp_path: Path, rules: list[dict[str, object]], wanted: str
) -> None:
    """The message says what to do: nobody writes so many by hand."""
    complaint = _complaint(tmp_path, AXES + f"exclude: {json.dumps(rules)}\n")
    assert complaint.startswith(wanted)
    assert complaint.endswith("join conditions, or split the sweep")


@pytest.mark.parametrize(("value", "other"), [("11", "12"), ("0:10", "0:20"), ("a", "b")])
def test_a_condition_asks_for_text_of_digits(tmp_path: Path, value: str, other: str) -> None:
    """An axis of a command may hold any."""
    axes = f'axes: {{cuda: ["{value}", "{other}"], k: [1, 2]}}'
    text = f"workload: command\nrun: 'true {{cuda}} {{k}}'\n{axes}\n"
    for rule in (
        f'exclude: [{{cuda: "{value}", k: 2}}]',
        f'exclude: [{{cuda: ["{value}"], k: 2}}]',
    ):
        points = [*expansion.expand(_load(tmp_path, f"{text}{rule}\n"), gpu="cpu")]
        assert len(points) == 3
    with pytest.raises(SpecError, match="cuda has no '13'"):
        _load(tmp_path, f'{text}exclude: [{{cuda: "13", k: 2}}]\n')


def test_text_is_not_compared_with_a_number(tmp_path: Path) -> None:
    """Also where other workloads have an axis of this name."""
    text = "workload: command\nrun: 'true {model}'\naxes: {model: [a, b]}\n"
    complaint = _complaint(tmp_path, f"{text}exclude: [{{model: {{gt: 1}}}}]\n")
    assert complaint == "4: exclude[0].model: compares numbers, and model has 'a'"


def test_a_zipped_axis_may_repeat_values(tmp_path: Path) -> None:
    """Rows must differ, columns need not."""
    text = "workload: noop\naxes:\n  model: [a, a, b]\n  seed: [1, 2, 1]\nzip: [[model, seed]]\n"
    assert list(_load(tmp_path, text).space.axes["model"]) == ["a", "a", "b"]


def test_points_can_be_named_one_by_one_without_any_axis(tmp_path: Path) -> None:
    """`include` alone is a sweep."""
    sweep = _load(tmp_path, "workload: noop\ninclude: [{model: a}, {model: a, seed: 1}]\n")
    assert [point["seed"] for point in sweep.include] == [0, 1]

"""What keys of a sweep file mean, and what is told about wrong ones; those of a command, too."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from hpcsweep.errors import SpecError
from hpcsweep.spec import lookup, sweep_file, sweep_keys
from hpcsweep.spec.expansion import expand

if TYPE_CHECKING:
    from pathlib import Path

    from hpcsweep.spec.space import Sweep

HEAD = "workload: inference\naxes:\n  model: [resnet18]\n"  # three lines
NOOP = "workload: noop\naxes: {model: [anything], batch_size: [1, 2]}\n"  # two lines


def load(folder: Path, text: str) -> Sweep:
    """Write and load."""
    path = folder / "a.yaml"
    path.write_text(text, encoding="utf-8")
    return sweep_file.load(path)


def complaint_about(folder: Path, text: str) -> str:
    """Return the complaint about a file, without its folder; it has one or two lines."""
    with pytest.raises(SpecError) as caught:
        load(folder, text)
    said = str(caught.value)
    assert said.count("\n") <= 1
    return said.replace(f"{folder}/", "")


def test_a_file_of_three_lines_is_a_sweep(tmp_path: Path) -> None:
    """Everything else has a default; the name is the file's."""
    sweep = load(tmp_path, HEAD)
    assert (sweep.name, sweep.workload, sweep.point_timeout) == ("a", "inference", 600.0)
    assert sweep.description == ""
    assert (sweep.measure["warmup"], sweep.measure["iterations"]) == (10, 20)
    assert sweep.text == HEAD
    assert sweep.path == tmp_path / "a.yaml"
    [point] = expand(sweep)
    assert point.axes["input_size"] == 224
    assert point.axes["gpu"] is None


def test_the_name_is_the_files_own_or_the_callers(tmp_path: Path) -> None:
    """A copy called sweep.yaml in a results folder keeps the folder's name."""
    path = tmp_path / "sweep.yaml"
    path.write_text(HEAD)
    assert sweep_file.load(path).name == "sweep"
    assert sweep_file.load(path, name="resnet18_sizes").name == "resnet18_sizes"
    path.write_text("name: my-sweep_2.1\n" + HEAD)
    assert sweep_file.load(path, name="other").name == "my-sweep_2.1"


def test_the_shipped_sweeps_keep_their_file_names() -> None:
    """So that `hpcsweep status NAME` is what one types."""
    shipped = lookup.names(lookup.SWEEPS)
    assert [sweep_file.load(path).name for path in shipped.values()] == list(shipped)


@pytest.mark.parametrize(
    ("name", "points"),
    [
        ("quickstart", 12),
        ("resnet152_gemm", 800),
        ("resnet152_implicit_precomp_gemm", 200),
        ("resnet152_energy", 200),
        ("amd_resnet_baseline_full", 10),
        ("nn_perf_training_full", 2),
        ("resnet50_cifar100_variants_full", 5),
        ("amd_resnet_baseline", 10),
        ("nn_perf_roofline", 4),
        ("resnet18_cifar10_five_experiments", 9),
        ("resnet18_cifar10_five_experiments_full", 9),
        ("resnet50_cifar100_variants", 5),
        ("resnet50_unique_layers", 240),
        ("vgg16_all_algorithms", 20 * (3 * 10 + 7)),
    ],
)
def test_the_shipped_sweeps_have_the_points_that_they_promise(name: str, points: int) -> None:
    """Counted, then enumerated."""
    expansion = expand(sweep_file.load(name))
    assert len(expansion) == points == sum(1 for _ in expansion)


@pytest.mark.parametrize(
    "name", ["resnet152_gemm", "resnet152_implicit_precomp_gemm", "resnet152_energy"]
)
def test_the_hundred_sizes_are_the_published_ones(name: str) -> None:
    """To the integer, batch 1, 10 passes of warm-up and 20 that count."""
    sweep = sweep_file.load(name)
    sizes = sorted({point.axes["input_size"] for point in expand(sweep)})
    assert sizes == [224 + int(i * (512 - 224) / 99) for i in range(100)]
    assert {point.axes["batch_size"] for point in expand(sweep)} == {1}
    assert (sweep.measure["warmup"], sweep.measure["iterations"]) == (10, 20)


def test_an_amd_gpu_is_not_asked_for_an_algorithm_that_its_library_lacks() -> None:
    """By an exclude in one shipped sweep, by a rule in the other."""
    gemm = {p.axes["algorithm"] for p in expand(sweep_file.load("resnet152_gemm"), gpu="mi250")}
    assert gemm == {"gemm", "implicit_gemm"}
    vgg = expand(sweep_file.load("vgg16_all_algorithms"), gpu="mi250")
    assert "implicit_precomp_gemm" not in {point.axes["algorithm"] for point in vgg}


def test_values_keep_their_types(tmp_path: Path) -> None:
    """Whole floats become integers where integers are meant, and nothing else changes."""
    sweep = load(
        tmp_path,
        HEAD + "  input_size: [224.0, 256]\n  tf32: [true, false]\n  num_threads: [null, 4]\n"
        "measure: {iterations: 5.0, target: 1, stop: adaptive}\n",
    )
    sizes = sweep.space.axes["input_size"]
    assert list(map(repr, sizes)) == ["224", "256"]
    assert list(sweep.space.axes["tf32"]) == [True, False]
    assert list(sweep.space.axes["num_threads"]) == [None, 4]
    assert repr(sweep.measure["iterations"]) == "5"
    assert sweep.measure["target"] == 1.0


def test_ranges_have_both_ends(tmp_path: Path) -> None:
    """By number, by step, upwards and downwards."""
    sweep = load(
        tmp_path,
        HEAD + "  input_size: {start: 32, stop: 64, num: 5}\n"
        "  batch_size: {start: 9, stop: 1, step: -4}\n  seed: {start: 0, stop: 5, step: 2}\n",
    )
    assert list(sweep.space.axes["input_size"]) == [32, 40, 48, 56, 64]
    assert list(sweep.space.axes["batch_size"]) == [9, 5, 1]
    assert list(sweep.space.axes["seed"]) == [0, 2, 4]


def test_an_algorithm_may_be_a_map_of_layers(tmp_path: Path) -> None:
    """Patterns to names; the map is one value of the axis."""
    sweep = load(
        tmp_path, HEAD + "  algorithm:\n    - gemm\n    - {'layer1.*': fft, default: auto}\n"
    )
    assert sweep.space.axes["algorithm"][1] == {"layer1.*": "fft", "default": "auto"}
    assert len({point.point_id for point in expand(sweep)}) == 2


def test_a_noop_fails_as_it_is_told(tmp_path: Path) -> None:
    """The injections are kept as written and are part of the points."""
    text = NOOP + (
        "measure:\n  sleep_ms: 20\n  fail:\n"
        "    - {when: {batch_size: [2], gpu: cpu}, how: crash, attempts: 1}\n    - {how: oom}\n"
    )
    sweep = load(tmp_path, text)
    assert sweep.measure == {
        "sleep_ms": 20.0,
        "fail": [
            {"when": {"batch_size": [2], "gpu": "cpu"}, "how": "crash", "attempts": 1},
            {"how": "oom"},
        ],
    }


def test_no_failures_are_the_same_as_none_mentioned(tmp_path: Path) -> None:
    """An empty list does not change the points."""
    plain = [point.point_id for point in expand(load(tmp_path, NOOP))]
    empty = [p.point_id for p in expand(load(tmp_path, NOOP + "measure: {fail: []}\n"))]
    assert plain == empty


def test_the_time_limit_of_a_point_is_not_part_of_it(tmp_path: Path) -> None:
    """Nor are its name and description: they do not change the number."""
    plain = [point.point_id for point in expand(load(tmp_path, HEAD))]
    other = load(tmp_path, HEAD + "point_timeout: 5\nname: other\ndescription: |\n  two\n  lines\n")
    assert [point.point_id for point in expand(other)] == plain
    assert other.point_timeout == 5.0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        # keys
        (HEAD + "exlude: []\n", ":4: exlude: unknown key, allowed are name, description"),
        (HEAD + "exlude: []\n", "did you mean 'exclude'?"),
        (HEAD + "zipp: []\nincude: []\n", "\na.yaml:5: incude: unknown key"),
        (HEAD + "axes: {}\n", ":4: axes: repeated key, first in line 2"),
        (
            HEAD + "  inputsize: [224]\n",
            ":4: axes.inputsize: unknown key, allowed are model, input_size",
        ),
        (HEAD + "  inputsize: [224]\n", "did you mean 'input_size'?"),
        (HEAD + "when:\n  - {iff: {}, axes: {}}\n", ":5: when[0].iff: unknown key, allowed are if"),
        (HEAD + "when: [{condition: {}, axes: {}}]\n", "when[0].condition: unknown key"),
        (
            "axes: {model: [resnet18]}\n",
            ":1: workload: is missing, allowed are inference, training",
        ),
        # names of things
        ("workload: inferense\n", ":1: workload: found 'inferense', allowed are inference"),
        ("workload: inferense\n", "did you mean 'inference'?"),
        (HEAD.replace("18", "81"), ":3: axes.model[0]: found 'resnet81', needs a torchvision"),
        (HEAD.replace("18", "81"), "did you mean 'resnet18'?"),
        (HEAD + "  algorithm:\n  - gemm\n  - wingrad\n", ":6: axes.algorithm[1]: found 'wingrad'"),
        (HEAD + "  algorithm:\n  - gemm\n  - wingrad\n", "did you mean 'winograd'?"),
        (
            HEAD + "  algorithm: [{'l*': gem}]\n",
            ":4: axes.algorithm[0].l*: found 'gem', allowed are",
        ),
        (
            HEAD + "  algorithm: [{'l*': 5}]\n",
            ":4: axes.algorithm[0].l*: found 5, allowed are auto, autotune",
        ),
        (HEAD + "  algorithm: [{}]\n", ":4: axes.algorithm[0]: found an empty map"),
        (
            HEAD + "  algorithm: [{' ': gemm}]\n",
            "found a map, with an empty layer pattern, needs one such as",
        ),
        (HEAD + "  dtype: [float23]\n", ":4: axes.dtype[0]: found 'float23', allowed are float32"),
        (HEAD + "  dtype: [float23]\n", "did you mean 'float32'?"),
        (HEAD + "  gpu: [a b]\n", ":4: axes.gpu[0]: found 'a b', needs letters, digits"),
        # types
        (
            HEAD + "  batch_size: [big]\n",
            ":4: axes.batch_size[0]: found 'big', needs a whole number",
        ),
        (HEAD + "  batch_size: ['4']\n", ":4: axes.batch_size[0]: found '4', needs a whole number"),
        (
            HEAD + "  batch_size: [true]\n",
            ":4: axes.batch_size[0]: found true, needs a whole number",
        ),
        (HEAD + "  batch_size: [1.5]\n", ":4: axes.batch_size[0]: found 1.5, needs a whole number"),
        (HEAD + "  batch_size: [1.0e300]\n", ":4: axes.batch_size[0]: found 1e+300, needs a whole"),
        (HEAD + "  batch_size: [null]\n", ":4: axes.batch_size[0]: found nothing, needs a whole"),
        (HEAD + "  batch_size: [[1]]\n", ":4: axes.batch_size[0]: found a list, needs a whole"),
        (HEAD + "  batch_size: [0]\n", ":4: axes.batch_size[0]: found 0, needs at least 1"),
        (HEAD + "  batch_size: 4\n", ":4: axes.batch_size: found 4, needs a list or {start"),
        (
            HEAD + "  dtype: float32\n",
            ":4: axes.dtype: found 'float32', needs a list, such as [float32]",
        ),
        (HEAD + "  tf32: [1]\n", ":4: axes.tf32[0]: found 1, needs true or false"),
        (HEAD + "  dtype: [32]\n", ":4: axes.dtype[0]: found 32, allowed are float32"),
        (HEAD + "  weights: ['']\n", ":4: axes.weights[0]: found '', needs one line of text"),
        (HEAD + "  batch_size: []\n", ":4: axes.batch_size: found an empty list, needs 1 or more"),
        (HEAD + "  batch_size:\n", ":4: axes.batch_size: found nothing, needs a list or"),
        ("workload: inference\naxes: [a]\n", ":2: axes: found a list, needs a map of keys"),
        ("workload: [inference]\n", ":1: workload: found a list, allowed are inference"),
        (HEAD + "zip: [model]\n", ":4: zip[0]: found 'model', needs a list"),
        (HEAD + "exclude: {gpu: l40}\n", ":4: exclude: found a map, needs a list"),
        (HEAD + "include: [resnet50]\n", ":4: include[0]: found 'resnet50', needs a map"),
        (HEAD + "point_timeout: soon\n", ":4: point_timeout: found 'soon', needs a number"),
        (HEAD + "point_timeout: 0\n", ":4: point_timeout: found 0, needs more than 0"),
        (HEAD + "description: 5\n", ":4: description: found 5, needs text; quote it"),
        # ranges
        (HEAD + "  seed: {start: 1, stop: 9, nmu: 2}\n", ":4: axes.seed.nmu: unknown key, allowed"),
        (
            HEAD + "  seed: {start: 1, stop: 9}\n",
            ":4: axes.seed: found a map, needs start, stop and one of num, step",
        ),
        (
            HEAD + "  seed: {start: 1, stop: 9, num: 2, step: 1}\n",
            ":4: axes.seed: found a map, needs start, stop and one of num, step",
        ),
        (HEAD + "  seed: {start: 1, stop: 9, num: 20}\n", "only 9 integers in 1..9"),
        (
            HEAD + "  seed: {start: 1, stop: 9, step: 0}\n",
            ":4: axes.seed.step: found 0, which does not lead from",
        ),
        (HEAD + "  seed: {start: 9, stop: 1, step: 1}\n", "does not lead from 9 to 1"),
        (
            HEAD + "  seed: {start: a, stop: 1, step: 1}\n",
            ":4: axes.seed.start: found 'a', needs a",
        ),
        (
            HEAD + "  dtype: {start: 1, stop: 9, num: 2}\n",
            ":4: axes.dtype: found a map, needs a list",
        ),
        # repetition and emptiness
        (
            HEAD + "  seed:\n  - 1\n  - 2\n  - 1\n",
            ":7: axes.seed[2]: 1 is repeated, first in line 5",
        ),
        (HEAD + "  seed: [1, 1.0]\n", ":4: axes.seed[1]: 1 is repeated"),
        ("workload: inference\n", ":1: axes: an empty sweep: has no axes"),
        (HEAD + "exclude: [{model: resnet18}]\n", ":2: axes: an empty sweep: every combination"),
        (
            HEAD + "include: [{model: resnet18}]\n",
            ":4: include[0]: the axes have this point already",
        ),
        (
            HEAD + "include:\n- {model: alexnet}\n- {model: alexnet, batch_size: 1}\n",
            ":6: include[1]: the same point as in line 5",
        ),
        # sizes
        (
            "workload: inference\naxes:\n  model: [inception_v3]\n  input_size: [299, 32]\n",
            ":4: axes.input_size[1]: found 32, inception_v3 needs at least 75",
        ),
        (
            "workload: inference\naxes:\n  model: [vit_b_16]\n  input_size: [256]\n",
            ":4: axes.input_size[0]: found 256, vit_b_16 takes 224 only",
        ),
        (
            HEAD + "include:\n- {model: alexnet, input_size: 40}\n",
            ":5: include[0].input_size: found 40, alexnet needs at least 63",
        ),
        # names that leave the results folder
        ("name: ../up\n" + HEAD, ":1: name: found '../up', needs letters, digits"),
        ("name: a/b\n" + HEAD, ":1: name: found 'a/b'"),
        ("name: .hidden\n" + HEAD, ":1: name: found '.hidden'"),
        ("name: -rf\n" + HEAD, ":1: name: found '-rf'"),
        ("name: a..b\n" + HEAD, ":1: name: found 'a..b'"),
        ("name: 'a\\\n" + HEAD, ":1: not YAML: while scanning a quoted scalar, found unexpected"),
        ("name: " + "x" * 200 + "\n" + HEAD, ":1: name: found 'xxx"),
        ("name: 5\n" + HEAD, ":1: name: found 5, needs text; quote it"),
        # settings
        (HEAD + "measure: {warmups: 3}\n", ":4: measure.warmups: unknown key, allowed are warmup"),
        (HEAD + "measure: {warmups: 3}\n", "did you mean 'warmup'?"),
        (HEAD + "measure: {sleep_ms: 3}\n", ":4: measure.sleep_ms: means nothing to inference"),
        (NOOP + "measure: {iterations: 3}\n", ":3: measure.iterations: means nothing to noop"),
        (HEAD + "measure: {iterations: many}\n", ":4: measure.iterations: found 'many', needs a"),
        (
            HEAD + "measure: {iterations: true}\n",
            ":4: measure.iterations: found true, needs a whole",
        ),
        (HEAD + "measure: {iterations: 0}\n", ":4: measure.iterations: found 0, needs at least 1"),
        (HEAD + "measure: {layers: yes}\n", ":4: measure.layers: found 'yes', allowed are true, f"),
        (HEAD + "measure: {layers: 1}\n", ":4: measure.layers: found 1, needs a name, or true"),
        (HEAD + "measure: {stop: fix}\n", ":4: measure.stop: found 'fix', allowed are fixed, adap"),
        (HEAD + "measure: [layers]\n", ":4: measure: found a list, needs a map"),
        # injected failures
        (
            NOOP + "measure: {fail: [{how: crsh}]}\n",
            ":3: measure.fail[0].how: found 'crsh', allowed",
        ),
        (NOOP + "measure: {fail: [{how: crsh}]}\n", "did you mean 'crash'?"),
        (NOOP + "measure: {fail: [{when: {}}]}\n", ":3: measure.fail[0].how: is missing"),
        (NOOP + "measure: {fail: [{how: oom, atempts: 1}]}\n", "did you mean 'attempts'?"),
        (NOOP + "measure: {fail: [{how: oom, attempts: 0}]}\n", "found 0, needs at least 1"),
        (NOOP + "measure: {fail: [{how: oom, when: {modle: a}}]}\n", "did you mean 'model'?"),
    ],
)
def test_what_is_wrong_is_told_with_file_line_and_key(
    tmp_path: Path, text: str, complaint: str
) -> None:
    """One or two lines: what was found, what is allowed, what is near."""
    said = complaint_about(tmp_path, text)
    assert said.startswith("a.yaml:")
    assert complaint in said


def test_bad_files_are_complained_about_like_bad_content(tmp_path: Path) -> None:
    """A directory, a missing file, an unknown name: the same kind of error."""
    for name in (tmp_path, tmp_path / "none.yaml", "nosuchsweep", ""):
        with pytest.raises(SpecError, match=r"is a directory|no such"):
            sweep_file.load(name)


def test_a_file_name_that_names_no_sweep_needs_a_name_inside(tmp_path: Path) -> None:
    """The complaint says why the file's name matters."""
    path = tmp_path / "my sweep.yaml"
    path.write_text(HEAD)
    with pytest.raises(SpecError, match="the file's name is the sweep's, where it has no `name`"):
        sweep_file.load(path)
    path.write_text("name: fine\n" + HEAD)
    assert sweep_file.load(path).name == "fine"


OWN = """\
workload: command
axes: {batch_size: [32, 64], lr: [0.1, 1e-2], precision: [fp32, amp]}
run: python train.py --batch {batch_size} --lr {lr} --{precision}
results: {json: last_line}
"""


def test_a_point_has_the_axes_of_the_file_and_its_command(tmp_path):
    """In the order of the file; what a command is not asked for has no axis."""
    points = [*expand(load(tmp_path, OWN), gpu="cpu")]
    assert len(points) == len({point.point_id for point in points}) == 8
    assert points[0].axes == {
        "batch_size": 32, "lr": 0.1, "precision": "fp32", "gpu": "cpu", "visit": 1
    }  # fmt: skip
    assert points[0].measure == {
        "run": "python train.py --batch {batch_size} --lr {lr} --{precision}",
        "results": {"json": "last_line"},
    }


def test_the_id_stays(tmp_path):
    """Results of today are found tomorrow."""
    first = next(iter(expand(load(tmp_path, OWN), gpu="cpu")))
    assert first.point_id == "2ae0e48e8c5efc4f"


@pytest.mark.parametrize("points", ["axes: {größe: [7]}", "include: [{größe: 7}]"])
def test_an_axis_has_a_name_of_any_letters(tmp_path, points):
    """Its points have ids, however they are given."""
    text = f"workload: command\nrun: 'true {{größe}}'\n{points}\n"
    (point,) = expand(load(tmp_path, text), gpu="cpu")
    assert point.point_id == "d4df691f3a1b9ad9"


def test_axes_may_depend_on_each_other(tmp_path):
    """As those of other workloads."""
    text = OWN + "exclude: [{precision: amp, lr: 0.1}]\ninclude: [{lr: 1.0, precision: tf32}]\n"
    text += "zip: []\nwhen: [{if: {precision: fp32}, axes: {batch_size: [8]}}]\n"
    points = [*expand(load(tmp_path, text), gpu="cpu")]
    told = {(p.axes["batch_size"], p.axes["lr"], p.axes["precision"]) for p in points}
    assert told == {
        (8, 0.1, "fp32"), (8, 0.01, "fp32"), (32, 0.01, "amp"), (64, 0.01, "amp"),
        (None, 1.0, "tf32"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("--{precision}", "--{precison}", "3: run: {precison} is no axis of this sweep"),
        ("--{precision}", "--{precison}", "did you mean 'precision'?"),
        ("--{precision}", "--{0}", "3: run: {0} is no name of an axis"),
        ("--{precision}", "--'{precision}", "3: run: No closing quotation"),
        ("precision: [", "mean_ms: [", "2: axes.mean_ms: is a name of hpcsweep's own"),
        ("precision: [", "out: [", "2: axes.out: is a name of hpcsweep's own"),
        ("precision: [", "a b: [", "cannot name an axis"),
        ("precision: [", "copy: [", "2: axes.copy: cannot name an axis"),
        ("[32, 64]", "[a]", "2: axes.batch_size[0]: found 'a', needs a whole number"),
        ("[fp32, amp]", "[[1]]", "2: axes.precision[0]: found a list, needs text of one line"),
        ("run: ", "ran: ", "ran: unknown key"),
        (
            OWN[OWN.index("run:") : OWN.index("results")],
            "",
            "run: needs a command",
        ),
        ("json: last_line", "json: '{x}.json'", "4: results.json: {x} is no axis"),
        ("json: last_line", "json: a, csv: b", "4: results: needs one of json, csv, pattern"),
        ("json: last_line", "pattern: '('", "4: results.pattern: is no regular expression"),
        ("json: last_line", "pattern: 'loss (.*)'", "4: results.pattern: has no named group"),
        ("json: last_line", "pattern: '(?P<lr>.)'", "cannot be called lr, which is a column"),
        ("json: last_line", "json: a, columns: {n: x}", "cannot be called n, which is a column"),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path, old, new, told):
    """Before anything runs."""
    with pytest.raises(SpecError) as error:
        load(tmp_path, OWN.replace(old, new))
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("axes", "exclude", "left"),
    [
        ("[false, true, 0, 1, 2]", "true", [False, 0, 1, 2]),
        ("[false, true, 0, 1, 2]", "[1, false]", [True, 0, 2]),
        ("[false, true, 0, 1, 2]", "{not: [true, 1]}", [True, 1]),
        ("[0.1, 0.01, 1]", "{lt: 0.1}", [0.1, 1]),
    ],
)
def test_conditions_are_on_values_as_they_are(tmp_path, axes, exclude, left):
    """True is not 1; numbers compare."""
    text = f"workload: command\naxes: {{k: {axes}}}\nexclude: [{{k: {exclude}}}]\nrun: echo {{k}}\n"
    found = [point.axes["k"] for point in expand(load(tmp_path, text), gpu="cpu")]
    assert list(map(repr, found)) == list(map(repr, left))


@pytest.mark.parametrize(
    ("exclude", "told"),
    [("1", "k has no 1, it has false, true"), ("{lt: 1}", "compares numbers, and k has false")],
)
def test_a_condition_that_holds_for_no_value_is_told(tmp_path, exclude, told):
    """Also where Python would call the values equal."""
    text = "workload: command\naxes: {k: [false, true]}\nrun: echo {k}\n"
    with pytest.raises(SpecError, match=told):
        load(tmp_path, f"{text}exclude: [{{k: {exclude}}}]\n")


def test_a_sweep_may_have_included_points_alone(tmp_path):
    """Each has all axes."""
    text = "workload: command\ninclude: [{a: 3}, {a: 4, b: x}]\nrun: echo {a} {b}\n"
    points = [*expand(load(tmp_path, text), gpu="cpu")]
    assert [(point.axes["a"], point.axes["b"]) for point in points] == [(3, None), (4, "x")]


def test_other_workloads_have_no_command(tmp_path):
    """The key is told with its line."""
    text = "workload: noop\naxes: {model: [a]}\nrun: x\n"
    with pytest.raises(SpecError, match="3: run: means nothing to noop"):
        load(tmp_path, text)


def test_an_editor_takes_any_axis_of_a_command_alone():
    """The JSON Schema knows the axes of all other workloads."""
    schema = json.loads(sweep_keys.schema())
    assert schema["if"] == {"properties": {"workload": {"const": "command"}}}
    assert "$ref" in schema["else"]["properties"]["axes"]
    assert "$ref" not in schema["properties"]["axes"]
    assert {"run", "results", "shell"} <= schema["properties"].keys()

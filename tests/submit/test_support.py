"""Which algorithms cuDNN has on a GPU, told before the queue: the real library, small networks."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest

import askinghere
import resultsfolder
from hpcsweep import environment
from hpcsweep.catalog import gpus
from hpcsweep.submit import questions

NETWORK = """\
from torch import nn

def net():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1),
        nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 64, 1), nn.Conv2d(64, 64, 3, stride=2),
    )

def points():
    return nn.Sequential(nn.Conv2d(3, 16, 1), nn.Conv2d(16, 16, 1))
"""
SWEEP = """\
workload: inference
axes:
  model: ["mynets:net"]
  input_size: [32]
  algorithm: [auto, gemm, direct, fft, winograd, winograd_nonfused]
"""


@pytest.fixture
def asked(desk, monkeypatch, tmp_path):
    """Return a folder with networks; the program answers in this process, and is counted."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (desk.folder / "mynets.py").write_text(NETWORK)
    asked = []

    @contextmanager
    def asking(folders, seconds=0.0):
        networks = {}
        asked.append(networks)
        with askinghere.asking(folders, seconds) as ask:

            def noted(network, questions):
                networks[network] = questions
                return ask(network, questions)

            yield noted

    monkeypatch.setattr(questions, "asking", asking)
    return desk, asked


def _profiles(desk, *gpus):
    """Write a profile for each GPU; return their folder."""
    folder = desk.folder / "cluster_profiles"
    folder.mkdir()
    for gpu in gpus:
        text = f"launcher: sbatch\ngpu: {gpu}\npartition: x\ntime: '1:00:00'\n"
        (folder / f"{gpu}.yaml").write_text(text)
    return folder


def _record(desk, *more, sweep=SWEEP):
    desk.spec(sweep)
    done = desk.run("expand", "sweep.yaml", "--support", *more, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)["support"]


def _says(record, gpu):
    (network,) = record["networks"]
    return {one["algorithm"]: one["says"] for one in network["algorithms"] if one["gpu"] == gpu}


def test_expand_tells_what_engines_tell_and_leaves_the_rest_to_the_node(asked):
    """Winograd where there is an engine, none on Hopper; the GEMM family is never a yes."""
    desk, _ = asked
    record = _record(desk, "--gpu", "l40,h100,mi250")
    l40, h100, amd = (_says(record, gpu) for gpu in ("l40", "h100", "mi250"))
    assert l40["auto"] == "4 of 4 (100 %)"
    assert l40["winograd"].startswith("2 of 4 (")
    assert h100["winograd"] == "no engine"
    for says in (l40, h100):
        assert says["gemm"] == says["direct"] == "unknown until the node"
        assert says["fft"] == says["winograd_nonfused"] == "no engine; unknown until the node"
    assert set(amd.values()) == {"unknown"}
    assert record["gpus"] == {"l40": "data sheets", "h100": "data sheets", "mi250": "unknown"}


def test_each_distinct_convolution_has_its_engines_notes_and_workspaces(asked):
    """In the record for machines: two calls of one shape are one convolution.

    The share is that of operations, the count that of distinct convolutions.
    """
    desk, _ = asked
    (network,) = _record(desk, "--gpu", "t4")["networks"]
    rows = network["convolutions"]
    assert [one["calls"] for one in rows] == [1, 2, 1, 1]
    on_t4 = [one["on"]["t4"] for one in rows]
    assert all(one.keys() == {"engine", "notes", "workspace_bytes"} for one in on_t4[1]["engines"])
    assert on_t4[1]["heuristic"][0].startswith("eng")
    has = [any("WINOGRAD" in engine["notes"] for engine in one["engines"]) for one in on_t4]
    work = [one["calls"] * one["flops"] for one in rows]
    (cell,) = [one for one in network["algorithms"] if one["algorithm"] == "winograd"]
    assert cell["with_engine"] == sum(has) > 0
    assert cell["convolutions"] == len(rows)
    share = 100 * sum(w for w, yes in zip(work, has, strict=True) if yes) / sum(work)
    assert cell["share_of_flops_pct"] == pytest.approx(share)


def test_a_second_time_nothing_is_asked_and_the_answer_is_the_same(asked, tmp_path):
    """Of torchvision's networks; another GPU, type or layout is asked for anew.

    A cache that is damaged costs only time.
    """
    desk, told = asked
    sweep = SWEEP.replace('"mynets:net"', "squeezenet1_1").replace("[32]", "[64]")
    first = _record(desk, "--gpu", "l40", sweep=sweep)
    assert _record(desk, "--gpu", "l40", sweep=sweep) == first
    assert len(told) == 1
    for path in (tmp_path / "cache").rglob("*.json"):
        path.write_text(path.read_text()[:100])
    assert _record(desk, "--gpu", "l40", sweep=sweep) == first
    assert len(told) == 2
    other = sweep + "  memory_format: [nhwc]\n  dtype: [float16]\n"
    record = _record(desk, "--gpu", "l40,h100", sweep=other)
    assert len(told) == 3
    assert all("float16_nhwc" in one["unique_key"] for one in record["networks"][0]["convolutions"])


def test_ones_own_network_is_looked_at_again_since_it_may_have_changed(asked):
    """Nothing of it is kept."""
    desk, told = asked
    for _ in range(2):
        _record(desk, "--gpu", "l40")
    assert [len(one["mynets:net"]) for one in told] == [1, 1]


def test_what_doctor_wrote_beside_the_profile_wins(asked):
    """A profile of an L40 whose node said that it is a Hopper GPU."""
    desk, _ = asked
    path = _profiles(desk, "l40") / "l40.device.json"
    path.write_text(json.dumps(gpus.cudnn_properties("h100")))
    for more in (("--gpu", "l40"), ("--cluster", "l40")):
        record = _record(desk, *more)
        assert _says(record, "l40")["winograd"] == "no engine"
        assert record["gpus"]["l40"].endswith("l40.device.json")


def test_maps_plans_and_engines_are_told_exactly(asked):
    """Of a map each layer has its own algorithm; one that engines do not tell hides the rest."""
    desk, _ = asked
    sweep = SWEEP.replace(
        "[auto, gemm, direct, fft, winograd, winograd_nonfused]",
        '[{"1": winograd, default: auto}, {"1": gemm, default: auto}]',
    )
    says = list(_says(_record(desk, "--gpu", "l40", sweep=sweep), "l40").values())
    assert says == ["4 of 4 (100 %)", "unknown until the node"]
    rows = _record(desk, "--gpu", "l40")["networks"][0]["convolutions"]
    first = rows[1]["on"]["l40"]["heuristic"][0]
    names = f"[heuristic, eng12, eng9999, eng12_k999=1, {first}, {first}@9.1.0]"
    sweep = SWEEP.replace("[auto, gemm, direct, fft, winograd, winograd_nonfused]", names)
    says = _says(_record(desk, "--gpu", "l40", sweep=sweep), "l40")
    assert says["heuristic"] == "4 of 4 (100 %)"
    assert says["eng12"].startswith("2 of 4")
    assert says["eng9999"] == says["eng12_k999=1"] == "no engine"
    assert says[first] == says[f"{first}@9.1.0"] != "no engine"


def test_estimate_and_submit_warn_of_points_that_cannot_have_their_algorithm(asked):
    """Before the queue; a network of 1x1 convolutions has no Winograd anywhere."""
    desk, _ = asked
    _profiles(desk, "h100", "l40")
    desk.spec(SWEEP.replace("[auto", "[winograd").replace(", winograd, ", ", "))
    on_h100 = desk.run("estimate", "sweep.yaml", "--cluster", "h100").stderr
    line = "warning: winograd: no engine for any convolution of mynets:net on h100 (cuDNN 9."
    assert line in on_h100
    assert "gemm: no engine" not in on_h100
    assert "warning: winograd:" not in desk.run("estimate", "sweep.yaml", "--cluster", "l40").stderr
    desk.spec(SWEEP.replace("mynets:net", "mynets:points"), name="points.yaml")
    for more in (("estimate",), ("submit", "--dry-run")):
        warned = desk.run(*more, "points.yaml", "--cluster", "l40")
        words = warned.stdout + warned.stderr
        assert "winograd: no engine for any convolution of mynets:points on l40" in words
        assert "its older calls may have it: the node will tell" in words


def test_nothing_is_asked_about_points_that_have_a_result(asked):
    """Of a sweep that is measured in part the rest is looked at; of one that is done nothing."""
    desk, told = asked
    _profiles(desk, "h100")
    text = resultsfolder.SWEEP.replace("resnet18", "'mynets:net'")
    folder = resultsfolder.make(desk.folder, text)
    points = resultsfolder.points_of(desk.folder, text, "h100")
    for name, some in (("s1", points[:-2]), ("s2", points[-2:])):
        folder.submit(name, points, text=text, gpu="h100")
        folder.measure(folder.shard(name), some)
        assert desk.run("estimate", "demo.yaml", "--cluster", "h100").returncode == 0
    (networks,) = told
    sizes = {about["axes"]["input_size"] for about in networks["mynets:net"]}
    assert sizes == {points[-1].axes["input_size"]}


def test_without_a_libcudnn_the_line_says_so(asked, tmp_path):
    """And estimate does not guess."""
    desk, _ = asked
    desk.spec(SWEEP)
    absent = {environment.CUDNN: str(tmp_path / "absent.so")}
    done = desk.run("expand", "sweep.yaml", "--support", "--gpu", "l40", **absent)
    assert "unknown (cuDNN cannot be loaded" in done.stdout
    assert "of 4" not in done.stdout


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "names no GPU; name some with --gpu l40,h100 or --cluster"),
        (("--gpu", "l4o"), "--gpu l4o: no such GPU; there are v100, t4, a100"),
    ],
)
def test_a_gpu_that_is_not_named_or_unknown_is_told(asked, more, words):
    """One line, and what to do."""
    desk, _ = asked
    desk.spec(SWEEP)
    done = desk.run("expand", "sweep.yaml", "--support", *more)
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr


def test_a_network_that_cannot_be_built_is_told_and_the_others_are_answered(asked):
    """Its factory raises."""
    desk, _ = asked
    (desk.folder / "odd.py").write_text("def broken():\n    raise ValueError('no such thing')\n")
    desk.spec(SWEEP.replace('["mynets:net"]', '["odd:broken", "mynets:net"]'))
    done = desk.run("expand", "sweep.yaml", "--support", "--gpu", "l40")
    assert "note: odd:broken: not looked at" in done.stdout
    assert "no such thing" in done.stdout
    assert "4 of 4 (100 %)" in done.stdout


def test_of_many_sizes_a_warning_looks_at_a_few_from_the_first_to_the_last(asked):
    """And says at how many."""
    desk, told = asked
    _profiles(desk, "h100")
    desk.spec(SWEEP.replace("[32]", "[16, 24, 32, 40, 48, 56, 64, 72, 80]"))
    warned = desk.run("estimate", "sweep.yaml", "--cluster", "h100").stderr
    assert "looked at 5 of 9 cases" in warned
    sizes = [about["axes"]["input_size"] for about in told[0]["mynets:net"]]
    assert sizes == [16, 32, 48, 64, 80]


@pytest.mark.slow
def test_a_cudnn_whose_graph_interface_is_mute_is_told_in_the_table(pretend_gpu, desk):
    """By `expand --support`: which library it is, and what to do."""
    desk.spec("workload: inference\naxes: {model: [resnet18], input_size: [64], gpu: [h100]}\n")
    named = str(pretend_gpu.folder / "libcudnn.so.9")
    cache = str(desk.folder / "cache")
    done = desk.run_process(
        "expand", "sweep.yaml", "--support", HPCSWEEP_CUDNN=named, XDG_CACHE_HOME=cache
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert f"unknown (cuDNN 9.26.0 at {named} does not answer" in done.stdout
    assert "ValueError" not in done.stdout

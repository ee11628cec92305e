"""Networks and files of the user's own: a job finds what the sweep names, or submit refuses."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import askinghere
import hpcsweep
import resultsfolder
from hpcsweep import messages, sources
from hpcsweep.errors import SpecError
from hpcsweep.messages import Message
from hpcsweep.point import Point
from hpcsweep.spec import profile, sweep_file
from hpcsweep.submit import check_inputs, comparison, questions, request
from hpcsweep.submit.comparison import Submit
from localruns import Desk

NETWORK = """\
from torch import nn
from helper import CHANNELS

def net():
    return nn.Sequential(nn.Conv2d(3, CHANNELS, 3), nn.Flatten())
"""
SWEEP = """\
workload: inference
axes:
  model: ["mymodel:net"]
  weights: [w.pt]
  input_size: [8]
measure: {warmup: 0, iterations: 2, stop: fixed, layers: false, numerics: false, evidence: false}
"""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Give a working directory; the sweep and all that it names lie in the folder beside it."""
    desk = Desk(tmp_path / "work")
    desk.folder.mkdir()
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "mymodel.py").write_text(NETWORK)
    (beside / "helper.py").write_text("CHANNELS = 4\n")
    (beside / "sweep.yaml").write_text(SWEEP)
    torch.save(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3)).state_dict(), beside / "w.pt")
    (desk.folder / "mymodel.py").write_text("raise RuntimeError('not the one beside the sweep')\n")
    return desk


def written(desk: Desk, old: str = "", new: str = "") -> Path:
    """Return the sweep file, with a change."""
    path = desk.folder.parent / "beside" / "sweep.yaml"
    path.write_text(SWEEP.replace(old, new))
    return path


def checked(desk: Desk, *requests: request.Request) -> Submit:
    """Check the inputs of requests; return what became of the first."""
    jobs = [comparison.in_results(desk.results, asked) for asked in requests]
    return check_inputs.check_inputs(jobs)[0]


@pytest.mark.slow
def test_a_run_here_finds_what_lies_beside_the_sweep(desk: Desk):
    """From another working directory; what lies in that comes second. A retry finds the same.

    All counts say that no convolution ran the algorithm, which oneDNN has not for float64.
    """
    path = written(desk, "measure: {", "  algorithm: [direct]\n  dtype: [float64]\nmeasure: {")
    done = desk.run_process("submit", path, "--cluster", "local")
    assert done.returncode == 0, done.stdout + done.stderr
    told = "1 ok, 1 of them not valid: algorithm_absent 1"  # and some noise, as it may be
    assert f"measured {told}" in done.stdout
    assert f"nothing to measure ({told}" in desk.run("submit", path).stdout
    shown = desk.run("status").stdout
    assert "sweep: local: flagged algorithm_absent 1" in shown
    assert shown.count("not valid") == 1
    assert shown.splitlines()[1].endswith("1 not valid")
    again = desk.run_process("retry", "sweep", "--status", "ok")
    assert again.returncode == 0, again.stdout + again.stderr
    assert [(row["status"], row["weights"]) for row in desk.rows()] == [("ok", "w.pt")] * 2


@pytest.mark.parametrize(
    ("old", "new", "words", "options"),
    [
        (":net", ":nte", (":3: axes.model[0]: 'mymodel:nte': ", "mymodel.py has no", "'net'?"), []),
        ("mymodel:", "mymodle:", (":3: ", "no module 'mymodle' in ", "'mymodel'?"), ["--dry-run"]),
        ("mymodel:", "broken:", ("broken.py:2: is not Python",), []),
        (
            'net"]\n  weights: [w.pt]',
            'nte"]\n  weights: [ww.pt, /no/w.pt]',
            (
                ":4: axes.weights[0]: 'ww.pt': no such file in ",
                "'w.pt'?",
                ":4: axes.weights[1]: '/no/w.pt': no such file in /no",
            ),
            [],
        ),
    ],
)
def test_what_is_not_there_is_refused_before_anything_is_written(
    desk: Desk, old: str, new: str, words: tuple[str, ...], options: list[str]
):
    """With file, line and key, and the nearest name; exit code 2."""
    (desk.folder.parent / "beside" / "broken.py").write_text("x = 1\ndef net(:\n")
    done = desk.run("submit", written(desk, old, new), *options)
    assert done.returncode == 2, done.stdout + done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert not list(desk.folder.glob("results/*/submissions/*"))


@pytest.mark.parametrize(
    "source",
    [
        "if True:\n    net = 3\n",
        "try:\n    from helper import CHANNELS as net\nexcept ImportError:\n    pass\n",
        "from helper import *\n",
        "globals().update(net=3)\n",
        "def __getattr__(name):\n    return 3\n",
        "class net:\n    pass\n",
    ],
)
def test_a_name_that_the_source_may_hold_is_no_misspelling(desk: Desk, source: str):
    """It is read, not run."""
    beside = desk.folder.parent / "beside"
    (beside / "mymodel.py").write_text(source)
    assert check_inputs.factory_problem("mymodel:net", [str(beside)]) == ("", True)


def _look_as_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget after the test where this process looked for modules."""
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setattr(sources, "_in_use", [])


BAD = """\
from torch import nn

def wide(width):
    return nn.Conv2d(3, width, 3)

def number():
    return 3

def fixed():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 2))

class Silent(nn.Module):
    def forward(self, images):
        return {"said": "nothing"}

def early():
    return nn.Conv2d(3, 4, 3).cuda()

def good():
    return nn.Conv2d(3, 4, 3)
"""
NETS = ["wide", "number", "fixed", "Silent", "early", "good", "god"]


def test_all_own_networks_that_cannot_be_measured_are_told_at_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    """Tried at the smallest and the largest images; what only a GPU's machine can do is a note."""
    monkeypatch.setattr(questions, "asking", askinghere.asking)
    _look_as_a_process_of_its_own(monkeypatch)
    (desk.folder.parent / "beside" / "badnets.py").write_text(BAD)
    models = ", ".join(f'"badnets:{name}"' for name in NETS)
    path = written(desk, '"mymodel:net"', models)
    path.write_text(
        path.read_text().replace("[8]", "[8, 9, 16]").replace("  weights: [w.pt]\n", "")
    )
    done = desk.run("submit", path)
    assert done.returncode == 2, done.stdout + done.stderr
    note, *lines = done.stderr.splitlines()
    assert "note: model 'badnets:early' could not be tried here (at input_size 8): " in note
    told = (
        (0, "wide", "at input_size 8: TypeError: wide() missing 1 required positional argument"),
        (1, "number", "returned int, not a torch.nn.Module; mend it, or exclude it"),
        (2, "fixed", "mat1 and mat2 shapes cannot be multiplied (1x784 and 144x2)"),
        (3, "Silent", "at input_size 8: TypeError: the network returns no tensor"),
        (6, "god", "badnets.py has no 'god'; did you mean 'good'?"),
    )
    assert len(lines) == len(told)
    for place, name, words in told:
        (line,) = (line for line in lines if f":3: axes.model[{place}]: 'badnets:{name}': " in line)
        assert words in line
    assert not list(desk.folder.glob("results/*/submissions/*"))


def test_what_a_network_computes_is_counted_when_it_is_tried(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    """For an image of 224 x 224, whatever the sizes of the sweep; so its time is no guess."""
    monkeypatch.setattr(questions, "asking", askinghere.asking)
    _look_as_a_process_of_its_own(monkeypatch)
    (desk.folder.parent / "beside" / "goodnets.py").write_text(BAD)
    path = written(desk, '"mymodel:net"]\n  weights: [w.pt]', '"goodnets:good"]')
    done = desk.run("submit", path, "--cluster", "local", "--dry-run", "--max-gpu-hours", "0")
    assert "1 from the table of peaks" in done.stdout, done.stdout + done.stderr
    asked = request.make(sweep_file.load(path), profile.load("local"))
    (found,) = checked(desk, asked).operations.values()
    assert found.convolutions == 1
    flops = 6 * 6 * 4 * 3 * 3 * 3 * 2  # at 8 x 8
    assert found.gflops == pytest.approx(flops * (224 / 8) ** 2 / 1e9, rel=0.05)


@pytest.mark.parametrize(
    ("more", "asked"),
    [
        (
            "batch_size: [2, 1, 4]",
            ["at input_size 8, batch_size 1", "at input_size 8, batch_size 4"],
        ),
        (
            "input_channels: [1, 3]",
            ["at input_size 8, input_channels 1", "at input_size 8, input_channels 3"],
        ),
        ("algorithm: [auto, gemm]", ["at input_size 8"]),
    ],
)
def test_a_network_is_tried_with_its_smallest_and_its_largest_input(
    desk: Desk, more: str, asked: list[str]
):
    """Named by what differs; once where all points have one input."""
    sweep = sweep_file.load(written(desk, "weights: [w.pt]", more))
    requests = [request.make(sweep, profile.load("local"))] * 2
    sweep_dir = desk.sweep()
    assert [one.at for one in questions.about_networks(sweep_dir, requests, ())] == asked
    assert not questions.about_networks(sweep_dir, requests, ["mymodel:net"])


def test_a_module_of_the_jobs_own_python_is_a_note(desk: Desk):
    """A virtual environment may have what this one lacks; a wrong name in a file here is wrong."""
    path = desk.folder / "site.yaml"
    path.write_text("gpu: cpu\nlauncher: sbatch\ntime: 10\nvenv: /opt/other\n")
    said: list[Message] = []
    sweep = sweep_file.load(written(desk, "mymodel:", "elsewhere:"))
    with messages.told_to(said.append):
        checked(desk, request.make(sweep, profile.load(path)))
    assert len(said) == 1
    assert "'elsewhere:net': no module" in said[0].text
    assert said[0].remedy == "the job's own Python must have it"
    wrong = sweep_file.load(written(desk, ":net", ":nte"))
    with pytest.raises(SpecError, match="has no 'nte'"):
        checked(desk, request.make(wrong, profile.load(path)))


def test_verify_finds_what_a_job_finds(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    """The same network from the same folder; where Python looks is as in a process of its own."""
    _look_as_a_process_of_its_own(monkeypatch)
    for name in ("mymodel", "helper"):
        monkeypatch.setitem(sys.modules, name, sys)  # so that they are gone after the test
        del sys.modules[name]
    done = desk.run("verify", written(desk))
    assert "mymodel:net" in done.stdout, done.stdout + done.stderr
    assert "could not run" not in done.stdout


def test_weights_that_a_job_would_have_to_download_are_refused_before_the_queue(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the command that fetches them; what is there is taken.

    The process that is asked is tried with maps; here it answers without another import of torch.
    """
    monkeypatch.setattr(questions, "asking", askinghere.asking)
    monkeypatch.setenv("TORCH_HOME", "")
    _look_as_a_process_of_its_own(monkeypatch)
    home = tmp_path / "home"
    site = desk.folder / "site.yaml"
    site.write_text(f"gpu: cpu\nlauncher: sbatch\ntime: 10\nenv: {{TORCH_HOME: {home}}}\n")
    path = desk.spec(
        "workload: inference\naxes: {model: [resnet34, resnet18], weights: [IMAGENET1K_V1]}\n"
    )
    asked = request.make(sweep_file.load(path), profile.load(site))
    there = home / "hub" / "checkpoints" / "resnet34-b627a593.pth"
    there.parent.mkdir(parents=True)
    there.touch()
    with pytest.raises(SpecError) as caught:
        checked(desk, asked)
    missing = there.with_name("resnet18-f37072fd.pth")
    assert f"{path}:2: axes.weights[0]: 'IMAGENET1K_V1': resnet18: {missing} is not" in str(
        caught.value
    )
    assert "`submit --download` on a login node downloads it" in str(caught.value)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*disturbed:UserWarning")  # of two passes one may be slow
def test_a_network_that_was_edited_is_told_and_measured_again(desk: Desk):
    """The helper that it imports, then its weights; the row says what the worker really ran."""
    path = written(desk)
    beside = path.parent
    assert desk.run_process("submit", path, "--cluster", "local").returncode == 0
    assert "note" not in desk.run("submit", path).stderr
    first = {row["own_files"] for row in desk.rows()}
    assert [list(sources.parts(cell)) for cell in first] == [["model", "weights"]]
    (beside / "helper.py").write_text("CHANNELS = 5\n")
    torch.save(torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3)).state_dict(), beside / "w.pt")
    told = desk.run("submit", path).stderr
    assert "note: 1 point of sweep measured with another version" in told
    assert "mymodel:net, w.pt (1)" in told
    assert "retry sweep --changed" in told
    with pytest.warns(UserWarning, match="1 point of sweep measured with another version"):
        hpcsweep.run(path, results=desk.results)
    assert desk.run_process("retry", "sweep", "--changed").returncode == 0
    assert "nothing to measure again" in desk.run("retry", "sweep", "--changed").stdout
    before, after = (sources.parts(row["own_files"]) for row in desk.rows())
    assert all(before[axis] != after[axis] for axis in ("model", "weights"))
    path.write_text(path.read_text().replace("  weights: [w.pt]\n", ""))
    for channels in (5, 6):
        (beside / "helper.py").write_text(f"CHANNELS = {channels}\n")
        again = desk.run_process("submit", path, "--cluster", "local", "--again")
        assert again.returncode == 0, again.stderr
    done = desk.run("compare", "sweep@1", "sweep@2", "--unreliable")
    assert "compared: versions of the own files of mymodel:net" in done.stdout, done.stderr


@pytest.mark.slow
def test_a_network_that_was_mended_is_measured_again_by_the_same_command(desk: Desk):
    """Its good points, too: a table needs one version of it. Then nothing is left to do."""
    path = written(desk, "[8]", "[8, 16]")
    path.write_text(path.read_text().replace("  weights: [w.pt]\n", ""))
    source = path.with_name("mymodel.py")
    wrong = "def net():\n    return Fails()\n\nclass Fails(nn.Conv2d):\n"
    wrong += "    def __init__(self): super().__init__(3, 4, 3)\n"
    wrong += "    def forward(self, images):\n"
    wrong += "        assert images.is_meta or len(images[0, 0]) == 8\n"
    wrong += "        return super().forward(images)\n"
    source.write_text(f"from torch import nn\n{wrong}")
    done = desk.run_process("submit", path, "--cluster", "local")
    assert done.returncode == 3, done.stdout + done.stderr
    source.write_text(NETWORK)
    assert "2 points in 1 chunk, 0 measured already" in desk.run("estimate", path).stdout
    done = desk.run_process("submit", path, "--cluster", "local")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "2 points measured again, since some failed and files changed: mymodel:net (2)"
        in done.stderr
    )
    assert sorted(row["status"] for row in desk.rows()) == ["error", "ok", "ok", "ok"]
    assert desk.run("collect", "sweep").stdout.count("earlier version") == 0
    assert "nothing to measure" in desk.run("submit", path).stdout


def asked_point(asked: request.Request) -> Point:
    """Return a point of the user's own network."""
    return next(point for point in asked.points() if ":" in point.axes["model"])


def test_rows_from_before_versions_were_recorded_are_of_an_unknown_one(tmp_path: Path):
    """They are told, once there is a file to compare with; torchvision's networks never are."""
    text = resultsfolder.SWEEP.replace("resnet18", "nets:tiny, resnet18")
    folder = resultsfolder.make(tmp_path, text)
    folder.submit("s1", text=text)
    folder.measure(folder.shard("s1"))
    asked = request.make(sweep_file.load(tmp_path / "demo.yaml"), profile.load("local"))
    points = request.points_of(asked.sweep, "cpu", None, rehearsal=True)
    asked = replace(asked, device="cpu", rehearsal=True, expansion=points)
    assert not comparison.changed(folder.sweep_dir, asked)
    (tmp_path / "nets.py").write_text("tiny = 1\n")
    assert Counter(comparison.changed(folder.sweep_dir, asked).values()) == {"nets:tiny": 8}
    known = {"nets:tiny": sources.Sources([str(tmp_path)]).cell(asked_point(asked))}
    assert not comparison.other_than({"resnet18": "", **known}, asked)
    (tmp_path / "nets.py").write_text("tiny = 2\n")
    assert comparison.other_than(known, asked) == ["nets:tiny"]


SITE = "gpu: cpu\nlauncher: sbatch\ntime: 10\n"
MAPS = """\
workload: inference
maps:
  early: &early
    "featurs.*": fft
    default: gemm
axes:
  model: [alexnet, "mymodel:net"]
  input_size: [64, 96]
  algorithm: [auto, *early, {"[0f]*": direct}]
"""
OWN = """\
from torch import nn
from pathlib import Path

def net():
    with Path(__file__).with_name("built").open("a") as file:
        print("built", file=file)
    print("a factory may print")
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())
"""
TOLD = """\
sweep.yaml:4: axes.algorithm[1].featurs.*: this pattern matches no convolution of alexnet; \
did you mean 'features.8'?
sweep.yaml:4: axes.algorithm[1].featurs.*: this pattern matches no convolution of mymodel:net; \
layers are 0 ...
"""


def test_a_pattern_that_matches_no_layer_is_refused_before_the_queue(desk: Desk) -> None:
    """Nothing is left behind. A network of the user's own is built once, whatever it prints."""
    desk.spec(MAPS)
    desk.spec(SITE, "site.yaml")
    (desk.folder / "mymodel.py").write_text(OWN)
    done = desk.run("submit", "sweep.yaml", "--cluster", "local", "--cluster", "site.yaml")
    assert (done.returncode, done.stderr) == (2, f"hpcsweep: {TOLD}"), done.stdout
    assert (desk.folder / "built").read_text() == "built\n"
    assert not desk.results.exists()


def test_what_could_not_be_checked_here_is_a_note(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login node may have no torch; weights cannot be looked for there, either."""
    without = desk.folder / "without"
    without.mkdir()
    (without / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    monkeypatch.setenv("PYTHONPATH", str(without))
    said: list[Message] = []
    (desk.folder / "mymodel.py").write_text(OWN)
    asked = _asked(desk, MAPS)
    with messages.told_to(said.append):
        checked(desk, asked, asked)
    why = "ModuleNotFoundError: No module named 'torch'"
    (note,) = said  # one for all that has the same reason
    assert note.level == "note"
    assert note.text.startswith("model 'mymodel:net' and 1 more could not be tried here (at ")
    assert note.text.endswith(f"): {why}")


def _asked(desk: Desk, text: str) -> request.Request:
    return request.make(sweep_file.load(desk.spec(text)), profile.load("local"))


def test_cifar_without_a_folder_is_told_before_the_queue(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its points train on random images; a folder of the profile or of this shell is enough."""
    monkeypatch.delenv("HPCSWEEP_DATA", raising=False)
    text = "workload: training\naxes: {model: [resnet18], dataset: [cifar10, synthetic]}\n"
    site = desk.folder / "site.yaml"
    site.write_text("gpu: cpu\nlauncher: sbatch\ntime: 10\nenv: {HPCSWEEP_DATA: /scratch/me}\n")
    sweep = sweep_file.load(desk.spec(text))
    said: list[Message] = []
    with messages.told_to(said.append):
        checked(desk, request.make(sweep, profile.load(site)))
        assert not said
        checked(desk, request.make(sweep, profile.load("local")))
        monkeypatch.setenv("HPCSWEEP_DATA", "/scratch/mine")
        checked(desk, request.make(sweep, profile.load("local")))
    (told,) = said
    assert (told.level, told.text.partition(",")[0]) == (
        "warning",
        "dataset 'cifar10': HPCSWEEP_DATA is not set on local",
    )
    assert "env: {HPCSWEEP_DATA: /a/dir}" in told.remedy


COMMAND = "workload: command\naxes: {k: [%s]}\nrun: %s\nresults: %s\n%s"


def _told(desk: Desk, values: str, run: str, results: str = "{}", more: str = "") -> str:
    """Return what is told of a command before it runs; two points run side by side."""
    path = desk.spec(COMMAND % (values, run, results, more), "c.yaml")
    try:
        sweep = sweep_file.load(path)
        asked = request.make(sweep, profile.load("local"), request.Options(workers=2))
        checked(desk, asked)
    except SpecError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("values", "run", "told"),
    [
        ("1", "python nosuch.py {k}", "there is no nosuch.py"),
        ("1", "python -u nosuch.py {k}", "there is no nosuch.py"),
        ("1", "python -m http.server --file nosuch.py", ""),
        ("1", "env -C src python nosuch.py", ""),  # that folder's
        ("1", "sh -c 'cd src && python nosuch.py'", ""),
        ("true, nosuch", "'{k}'", "there is no program nosuch"),
        ("'', 'true'", "'{k}'", "the command of a point is empty"),
    ],
)
def test_a_program_that_is_not_there_is_told(desk: Desk, values: str, run: str, told: str):
    """Of any point; files that a program finds elsewhere are its own matter."""
    found = _told(desk, values, f'"{run}"')
    assert (told in found) if told else not found, found


@pytest.mark.parametrize(
    ("results", "told"),
    [
        ("{json: out.json}", "2 points that may run at the same time write this file"),
        ("{csv: 'out-{k}.csv'}", ""),
        ("{json: '{out}/end.json'}", ""),
        ("{json: last_line}", ""),
        ("{columns: {y: loss}}", "names columns of nothing"),
        ("{pattern: 'y=(?P<y>.)', columns: {z: w}}", "no group of the pattern is called w"),
    ],
)
def test_results_that_are_not_the_points_own_are_told(desk: Desk, results: str, told: str):
    """Points beside each other would read what the other one wrote."""
    found = _told(desk, "1, 2", "echo {k}", results)
    assert (told in found) if told else not found, found


@pytest.mark.parametrize(
    ("values", "run", "told"),
    [
        ("a b", "'echo \"<{k}>\"'", "{k} stands in quotes, and is 'a b'"),
        ("a b", "'echo {k}'", ""),
        ("ab", "'echo \"<{k}>\"'", ""),
        ("a b", r"'echo \"it is\" \\\" {k}'", ""),
    ],
)
def test_a_value_in_quotes_of_a_shell_is_told(desk: Desk, values: str, run: str, told: str):
    """It is quoted itself, so quotes around it would end there."""
    found = _told(desk, values, run, more="shell: true\n")
    assert (told in found) if told else not found, found

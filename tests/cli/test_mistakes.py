"""What a person types wrong, and the answer: file, line, key, and what to write instead."""

from __future__ import annotations

import pytest

from localruns import Desk

HEAD = "workload: inference\naxes:\n  model: [resnet18]\n"
SWEEPS = [
    (HEAD + "exlude: []\n", "4: exlude: unknown key", "did you mean 'exclude'?"),
    (HEAD + "  inputsize: [64]\n", "4: axes.inputsize: unknown key", "did you mean 'input_size'?"),
    (HEAD + "measure: {warmpu: 1}\n", "4: measure.warmpu: unknown key", "did you mean 'warmup'?"),
    (HEAD.replace("18", "81"), "3: axes.model[0]: found 'resnet81'", "did you mean 'resnet18'?"),
    (HEAD.replace("inference", "infrence"), "1: workload: found 'infrence'", "'inference'?"),
    ("axes: {model: [resnet18]}\n", "1: workload: is missing, allowed are inference, ", "noop"),
    (HEAD + "  algorithm: [wingrad]\n", "4: axes.algorithm[0]: found 'wingrad'", "'winograd'?"),
    (HEAD + "  dtype: [fp32]\n", "4: axes.dtype[0]: found 'fp32'", "allowed are float32"),
    (HEAD + "  input_size: 224\n", "4: axes.input_size: found 224, needs", "[224]"),
    (HEAD + "  input_size: ['224']\n", "4: axes.input_size[0]: found '224'", "a whole number"),
    (HEAD.replace("resnet18", "mynet.py"), "3: axes.model[0]: found 'mynet.py'", "`mynet:NAME,"),
    (HEAD.replace("resnet18", "a.mynet.Net"), "3: axes.model[0]: found", "write `a.mynet:Net`"),
    (HEAD.replace("model: ", "model:") + "  dtype: [float32]\n", "3: a space is missing", ""),
    (HEAD.replace("resnet18", "nets: small"), "3: axes.model[0]: found a map", "nets:small"),
    (HEAD + "  input_size: [64:224]\n", "4: axes.input_size[0]: found '64:224'", "{start: 64, "),
    (HEAD + "  dtype: [float23]\n", "4: axes.dtype[0]: found 'float23'", "mean 'float32'?"),
    (HEAD + "  input_size: [0]\n", "4: axes.input_size[0]: found 0", "at least 1"),
    (HEAD + "  batch_size: [1, 2, 1]\n", "4: axes.batch_size[2]: 1 is repeated", "remove one"),
    (HEAD + "  input_size: {from: 64, to: 224}\n", "4: axes.input_size: found", "{start: 64, "),
    (HEAD + "  input_size: {start: 1, stop: 9, nun: 2}\n", "4: axes.input_size", "'num'?"),
    ("workload: inference\naxes:\n  batch_size: [1]\n", "2: axes: `model` is missing", "models"),
    (
        HEAD.replace("resnet18", "vgg16") + "  input_size: [8]\n",
        "4: axes.input_size[0]: found 8, vgg16 needs at least 32",
        "exclude it",
    ),
    (HEAD + "exclude: [{model: resnet50}]\n", "4: exclude[0].model: model has no", "resnet18"),
    (HEAD + "exclude: [{modle: resnet18}]\n", "4: exclude[0].modle: ", "did you mean 'model'?"),
    (HEAD + "zip: [[model, dtype]]\n", "4: zip[0][1]: dtype has no values under `axes`", "model"),
    (HEAD + "when: [{if: {}, axes: {}}]\n", "4: when[0].axes: found an empty map", "axis: [value"),
    (HEAD + "include: [{model: resnet18}]\n", "4: include[0]: the axes have this", "remove it"),
    (HEAD + "axes: {}\n", "4: axes: repeated key", "first in line 2"),
    (HEAD + "point_timeout: soon\n", "4: point_timeout: found 'soon'", "needs a number"),
    (HEAD + "\tx: 1\n", "4: a tab", "YAML indents with spaces"),
    (HEAD + "name: a: b\n", "4: not YAML: mapping values are not allowed", "in this context"),
    (
        HEAD + "zip: [[a, b]\nname: x\n",
        "5: not YAML: while parsing a flow sequence",
        "expected ',' or ']'",
    ),
    (HEAD + "name: 'x\n", "4: not YAML: while scanning a quoted scalar", "end of stream"),
    (HEAD + "name: ../x\n", "4: name: found '../x'", "needs"),
]
PROFILES = [
    ("gpu: l40\npartion: gpu\n", "2: partion: unknown key", "did you mean 'partition'?"),
    ("gpu: l40\nlauncher: sbtach\n", "2: launcher: found 'sbtach'", "did you mean 'sbatch'?"),
    ("gpu: l40\nmem: 16\n", "2: mem: found '16', needs memory", "such as 16G"),
    ("gpu: l40\ntime: 24h\n", "2: time: found '24h', needs a time limit", "HH:MM:SS"),
    ("gpu: l40\ntime: later\n", "2: time: found 'later'", "D-HH:MM:SS"),
    ("gpu: l40\nextends: bsae\n", "2: extends: bsae: no such name", "did you mean 'base'?"),
    ("partition: gpu\n", "1: `gpu` is missing", "such as l40"),
    ("gpu: l40\nconda: a\nvenv: b\n", "3: venv: `conda` and `venv` exclude each", "one to null"),
    ("gpu: l40\nsetup: module load x\n", "2: setup: found 'module load x'", "needs a list"),
    ("gpu: l40\nenv: {A: true}\n", "2: env.A: found true, needs text", "quote it"),
]
COMMANDS = [
    ("submti", "no command 'submti'; did you mean 'submit'?"),
    ("expand quikstart", "quikstart: no such name in sweeps/", "did you mean 'quickstart'?"),
    ("expand ./quikstart.yaml", "./quikstart.yaml: no such file", ""),
    ("submit quickstart --cluster locl", "locl: no such name", "did you mean 'local'?"),
    ("submit quickstart --clustre local", "No such option", "--cluster"),
    ("expand", "Missing argument 'SPEC'; there are: ", "quickstart, "),
    ("expand quickstart --sample 0.5", "'--sample': '0.5' is not a valid whole number"),
    ("report nosuch", "no results of a sweep 'nosuch'", "`hpcsweep submit SPEC` makes some"),
    (
        "report quickstart/overall.csv",
        "no sweep can have the name",
        "name the sweep, or its folder",
    ),
    ("help sumbit", "no help on 'sumbit'; did you mean 'submit'?"),
    ("submit quickstart --workers 0", "Invalid value for '--workers'", "x>=1"),
    (
        "submit quickstart --until-error 3",
        "--until-error 3: the percent sign is",
        "--until-error 3%",
    ),
    ("submit quickstart --until-error abc", "abc: needs a percentage above 0", "--until-error 3%"),
    ("submit quickstart --until-error 3% --dry-run", "what it measures", "leave out --dry-run"),
    ("submit quickstart --watch", "--watch goes with --until-error", "status SWEEP --watch"),
    (
        "predict sweep.yaml --model vgg11",
        "--model: model is an axis; the sweep file has its",
    ),
    ("report s --input-size 64", "--input-size: input_size is an axis; --where input_size=VALUE"),
    ("status nothing", "no results", "nothing"),
    ("logs", "no results yet", "hpcsweep submit SPEC"),
    (
        "estimate resnet152_gemm --cluster h200",
        "no point of this sweep",
        "the profile has gpu: h200",
    ),
    ("init --cluster", "'--cluster' requires an argument (see `hpcsweep init --help`)"),
    ("status --watch=3", "'--watch' does not take a value (see `hpcsweep status --help`)"),
    ("rm", "Missing argument 'SWEEP'; there are: none yet (see `hpcsweep rm --help`)"),
    ("config --set top=5", "no option --set: to set one, write a line into hpcsweep.toml"),
    ("submit quickstart --html x.html", "no option --html: it belongs to `hpcsweep report`"),
    ("roofline k.csv --summary s.csv", "no option --summary: a second `--out FILE.csv` writes"),
    ("status --jsn", "No such option", "'--json'"),
    ("status --results x", "--results belongs before the command: hpcsweep --results"),
    ("status --debug", "--debug belongs before the command: hpcsweep --debug ... status"),
    ("--reslts x status", "No such option", "(see `hpcsweep --help`)"),
    ("zzzz", "no command 'zzzz' (there are: init, "),
    ("--results", "'--results' requires an argument (see `hpcsweep --help`)"),
]


def answer(desk: Desk, *words: str) -> str:
    """Return the error of a command, in which nothing was started."""
    done = desk.run(*words)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert not desk.results.exists()
    return done.stderr


@pytest.mark.parametrize(("text", "told", "advice"), SWEEPS)
def test_a_mistake_in_a_sweep(desk: Desk, text: str, told: str, advice: str) -> None:
    """Each is found before anything runs."""
    desk.spec(text)
    (line,) = answer(desk, "expand", "sweep.yaml").splitlines()
    assert line.startswith(f"hpcsweep: sweep.yaml:{told}")
    assert advice in line


@pytest.mark.parametrize(("text", "told", "advice"), PROFILES)
def test_a_mistake_in_a_profile(desk: Desk, text: str, told: str, advice: str) -> None:
    """Each is found before Slurm is asked."""
    desk.spec(HEAD)
    desk.spec(text, "mine.yaml")
    (line,) = answer(desk, "submit", "sweep.yaml", "--cluster", "mine.yaml").splitlines()
    assert line.startswith(f"hpcsweep: mine.yaml:{told}")
    assert advice in line


@pytest.mark.parametrize("typed", COMMANDS, ids=lambda typed: typed[0])
def test_a_mistake_in_a_command(desk: Desk, typed: tuple[str, ...]) -> None:
    """Each is told in one line, with the nearest name or the page to read."""
    command, *told = typed
    (line,) = answer(desk, *command.split()).splitlines()
    assert line.startswith("hpcsweep: ")
    assert all(words in line for words in told)


def test_a_wrong_default_profile_is_told_with_who_set_it(desk: Desk) -> None:
    """A variable, or a line of a file; one that the command names stands there already."""
    told = "nope: no such name in cluster_profiles/"
    for command in ("submit", "estimate"):
        done = desk.run(command, "quickstart", HPCSWEEP_CLUSTER="nope")
        assert told in done.stderr
        assert done.stderr.endswith(" (from environment: HPCSWEEP_CLUSTER)\n")
    desk.spec("cluster = 'nope'\n", "hpcsweep.toml")
    told_file = desk.run("submit", "quickstart", HPCSWEEP_CLUSTER="").stderr
    assert told_file.endswith(" (from hpcsweep.toml:1)\n")
    assert "(from" not in desk.run("submit", "quickstart", "--cluster", "nope").stderr


def test_a_file_that_is_no_sweep_or_has_no_name_for_one(desk: Desk) -> None:
    """A Python file, a name with a space, and a name beside a file of that name."""
    desk.spec(HEAD, "my net.yaml")
    desk.spec("class Net: ...\n", "nets.py")
    desk.spec(HEAD, "mine.yaml")
    assert "nets.py: is Python; a sweep, in YAML" in answer(desk, "expand", "nets.py")
    assert "write `name: my_net`" in answer(desk, "expand", "my net.yaml")
    assert "for the file write mine.yaml" in answer(desk, "expand", "mine")


def test_a_mistake_in_what_is_read(desk: Desk) -> None:
    """A status that no point has, a form by its long name, a folder for a page, a rehearsal."""
    desk.spec("workload: noop\naxes: {model: [a], gpu: [v100]}\n")
    told = desk.run("submit", "sweep.yaml", "--cluster", "local").stderr
    assert "note: the sweep asks for gpu: v100; this rehearsal's rows are of cpu alone" in told
    shown = desk.run("show", "sweep", "--status", "error,timeout").stdout
    assert shown == "sweep: no point is error or timeout (1 ok)\n"
    forms = (desk.run("report", "sweep", "--format", name).stdout for name in ("md", "markdown"))
    assert len({*forms}) == 1
    assert desk.run("report", "sweep", "--html", ".").stdout == "open sweep.html\n"
    assert (desk.folder / "sweep.html").is_file()
    page = desk.run_process("report", "sweep", "--html", "-").stdout
    assert page == (desk.folder / "sweep.html").read_text()
    refused = desk.run("report", "sweep", "--html", "-", "--format", "csv")
    assert (refused.returncode, "leave out --format" in refused.stderr) == (2, True)


def test_a_mistake_about_results_that_there_are(desk: Desk) -> None:
    """A folder too deep, a run and a point that are not, a GPU misspelt, the logs of an import."""
    desk.spec("workload: noop\naxes: {model: [a], gpu: [v10O]}\n")
    told = desk.run("submit", "sweep.yaml", "--cluster", "local").stderr
    assert "note: gpu 'v10O': no profile and no data sheet has it; did you mean 'v100'?" in told
    below = Desk(desk.folder / "notes")
    below.folder.mkdir()
    desk.run("import", "results/sweep", "--as", "theirs")
    results = desk.results
    for where, command, words in (
        (
            below,
            "report sweep",
            f"no results of a sweep 'sweep'; {results} has it: --results {results}",
        ),
        (desk, "compare", "Missing argument 'FIRST'; there are: sweep, theirs"),
        (desk, "report sweep@previous", "`hpcsweep submit sweep --again` begins the next"),
        (desk, "show sweep zzzz", "'zzzz' is no point's id; `hpcsweep show SWEEP` lists them"),
        (desk, "report sweep --metric zzzz", "no column 'zzzz'; the first line of that file, or"),
        (desk, "logs theirs", "was imported; its logs stayed at "),
    ):
        done = where.run(*command.split())
        assert done.returncode == 2, done.stdout
        (line,) = done.stderr.splitlines()
        assert words in line


FIVE = """\
workload: infrence
axes:
  modle: [resnet18]
  input_size: [64, big]
  dtype: [float33]
measure: {warmup: -1}
"""
MORE = """\
workload: inference
axes:
  model: [resnet18]
  input_size: [64, 128]
  batch_size: [1, 2, 1]
exclude:
  - {input_size: 256}
  - {model: resnet19}
  - {batch_size: 3}
when:
  - {if: {input_size: 65}, axes: {dtype: [float16]}}
"""


TWICE = """\
workload: inference
axes:
  model: [resnet19]
  batch_size: [1]
  batch_size: [2]
axes: {}
name: !!str x
"""


def test_repeated_keys_are_told_with_the_other_mistakes(desk: Desk) -> None:
    """The first value is checked; of a profile, too. After an error of grammar nothing is known."""
    desk.spec(TWICE)
    lines = answer(desk, "expand", "sweep.yaml").splitlines()
    told = ["3: axes.model[0]: found 'resnet19'", "5: batch_size: repeated key, first in line 4"]
    told += ["6: axes: repeated key, first in line 2", "7: tag !!str is not allowed"]
    assert [words in line for words, line in zip(told, lines, strict=True)] == [True] * 4
    desk.spec(HEAD)
    desk.spec("gpu: l40\ngpu: v100\nconda: a\nvenv: b\n", "mine.yaml")
    first, second = answer(desk, "submit", "sweep.yaml", "--cluster", "mine.yaml").splitlines()
    assert "2: gpu: repeated key, first in line 1" in first
    assert "4: venv: `conda` and `venv` exclude each other" in second
    desk.spec("gpu: l40\ngpu: v100\npartion: x\n", "mine.yaml")
    assert len(answer(desk, "submit", "sweep.yaml", "--cluster", "mine.yaml").splitlines()) == 2


def test_all_mistakes_of_a_file_are_told_at_once(desk: Desk) -> None:
    """A line for each, in the order of the file; first what is misspelt, then what does not fit."""
    desk.spec(FIVE)
    lines = answer(desk, "expand", "sweep.yaml").removeprefix("hpcsweep: ").splitlines()
    keys = ["1: workload: ", "3: axes.modle: ", "4: axes.input_size[1]: ", "5: axes.dtype[0]: "]
    keys += ["6: measure.warmup: "]
    assert [
        line.startswith(f"sweep.yaml:{key}") for line, key in zip(lines, keys, strict=True)
    ] == [True] * 5
    desk.spec(MORE)
    lines = answer(desk, "expand", "sweep.yaml").removeprefix("hpcsweep: ").splitlines()
    keys = ["5: axes.batch_size[2]: 1 is ", "7: exclude[0].input_size: ", "8: exclude[1].model: "]
    keys += ["9: exclude[2].batch_size: ", "11: when[0].if.input_size: "]
    assert [
        line.startswith(f"sweep.yaml:{key}") for line, key in zip(lines, keys, strict=True)
    ] == [True] * 5
    desk.spec(HEAD)
    desk.spec("gpu: l40\nmem: 16\ntime: 24h\npartion: x\ncpus_per_task: 0\nqos: 5\n", "mine.yaml")
    told = answer(desk, "submit", "sweep.yaml", "--cluster", "mine.yaml")
    lines = told.removeprefix("hpcsweep: ").splitlines()
    assert [int(line.split(":")[1]) for line in lines] == [2, 3, 4, 5, 6]

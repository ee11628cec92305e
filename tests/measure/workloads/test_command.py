"""Points that run a command of the user's own."""

from __future__ import annotations

import csv
import json
import shlex
import sys
from pathlib import Path

import pytest

import hpcsweep
from killing import torment
from waiting import is_alive, wait_for

HEAD = "workload: command\naxes: {k: [1]}\n"
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc")


def _script(desk, text: str, name: str = "one.py") -> None:
    (desk.folder / name).write_text(text)


def _row(desk) -> dict[str, str]:
    (row,) = desk.rows()
    return row


def test_results_and_axes_become_columns(desk):
    """By their own names, beside the time of the run; the row says that nobody proved them."""
    _script(
        desk,
        "import json, sys; print('begins'); print(json.dumps("
        "{'loss': float(sys.argv[2]) * int(sys.argv[1]), 'batch_size': int(sys.argv[1])}))\n"
        "print('a word after it', file=sys.stderr)\n",
    )
    desk.spec(
        "workload: command\naxes: {batch_size: [2, 4], lr: [0.5], precision: [fp32, amp]}\n"
        "run: python one.py {batch_size} {lr} --{precision}\nresults: {json: last_line}\n"
    )
    assert desk.submit("--collect").returncode == 0
    with desk.sweep().overall.open(newline="") as file:
        rows = [*csv.DictReader(file)]
    told = {(row["batch_size"], row["precision"], row["loss"]) for row in rows}
    assert told == {("2", "fp32", "1"), ("2", "amp", "1"), ("4", "fp32", "2"), ("4", "amp", "2")}
    assert {(row["status"], row["valid"], row["flags"]) for row in rows} == {
        ("ok", "true", "foreign")
    }
    assert all(float(row["wall_s"]) >= float(row["median_ms"]) / 1000 > 0 for row in rows)


def test_a_column_may_appear_midway(desk):
    """The rows before it have an empty cell; a second collect adds what is new."""
    _script(
        desk,
        "import json, sys\nn = int(sys.argv[1])\nprint(json.dumps({'a' if n < 2 else 'b': n}))",
    )
    for values in ("[1]", "[1, 2]"):
        desk.spec(
            f"workload: command\naxes: {{n_th: {values}}}\nrun: python one.py {{n_th}}\n"
            "results: {json: last_line}\n"
        )
        assert desk.submit("--collect").returncode == 0
    with desk.sweep().overall.open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [(row["n_th"], row["a"], row["b"]) for row in rows] == [("1", "1", ""), ("2", "", "2")]


@pytest.mark.parametrize(
    ("how", "script"),
    [
        (
            "{csv: '{out}/log.csv'}",
            "open(out + '/log.csv', 'w').write('epoch,acc\\n1,0.1\\n2,0.5\\n')",
        ),
        (
            "{csv: '{out}/log.csv'}",  # with UTF-8's mark, as other systems write it
            r"open(out + '/log.csv', 'w').write('\ufeffepoch , acc \n2, 0.5 \n')",
        ),
        ("{json: last_line}", """print('  {"acc": 0.5, "epoch": 2}')"""),
        ("{json: 'here.json'}", "open('here.json', 'w').write('{\"acc\": 0.5, \"epoch\": 2}')"),
        (r"{pattern: '^acc (?P<acc>\S+) (?P<epoch>\d+)'}", "print('acc 0.1 1\\nacc 0.5 2\\nend')"),
    ],
)
def test_results_may_stand_in_a_file_or_in_the_output(desk, how, script):
    """The last row, the whole object, the last match; a file may lie in the point's folder."""
    _script(desk, f"import sys; out = sys.argv[1]; {script}")
    desk.spec(f"{HEAD}run: python one.py {{out}} {{k}}\nresults: {how}\n")
    assert desk.submit().returncode == 0
    row = _row(desk)
    assert json.loads(row["own_results"]) == {"acc": 0.5, "epoch": 2}
    assert (row["artifacts"] == row["point_id"]) is ("csv" in how)


def test_what_an_earlier_run_left_is_no_result(desk):
    """A file that this run did not write is refused."""
    (desk.folder / "old.json").write_text("{}")
    desk.spec(f"{HEAD}run: echo {{k}}\nresults: {{json: old.json}}\n")
    assert desk.submit().returncode == 3
    assert "old.json was not written" in _row(desk)["status_reason"]


def test_a_row_longer_than_its_header_is_no_result(desk):
    """Nobody knows which cell is which."""
    _script(desk, "open('log.csv', 'w').write('epoch,acc\\n1,2,0.5\\n')")
    desk.spec(f"{HEAD}run: python one.py {{k}}\nresults: {{csv: log.csv}}\n")
    assert desk.submit().returncode == 3
    assert "log.csv has more cells than the header" in _row(desk)["status_reason"]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("no JSON", "no line of its output is a JSON object"),
        ("[1]", "no line of its output is a JSON object"),
        ('{"mean_ms": 3}', "mean_ms is a column already"),
    ],
)
def test_results_that_are_none_fail_the_point(desk, said, told):
    """The row says why; the command itself ended well."""
    _script(desk, f"print({said!r})")
    desk.spec(f"{HEAD}run: python one.py {{k}}\nresults: {{json: last_line}}\n")
    assert desk.submit().returncode == 3
    row = _row(desk)
    assert row["status"] == "error"
    assert told in row["status_reason"]


def test_the_sweep_may_call_results_otherwise(desk):
    """So that no name of the program meets a column."""
    _script(desk, 'print(\'{"mean_ms": 3, "x": 1}\')')
    desk.spec(
        f"{HEAD}run: python one.py {{k}}\n"
        "results: {json: last_line, columns: {step: mean_ms}}\n"
    )
    assert desk.submit().returncode == 0
    assert json.loads(_row(desk)["own_results"]) == {"step": 3}


@pytest.mark.parametrize(
    ("script", "status", "told"),
    [
        ("raise MemoryError", "oom", "MemoryError"),
        ("print('torch.OutOfMemoryError: CUDA out of memory. Tried'); raise SystemExit(1)", "oom",
         "CUDA out of memory"),
        ("print(\"DefaultCPUAllocator: can't allocate memory: you tried\"); raise SystemExit(1)",
         "oom", "allocate memory"),
        ("print('last words'); raise SystemExit(3)", "crashed", "exit code 3: last words"),
        ("print('out of memory, once more with less')\nraise KeyError('labels')", "crashed",
         "exit code 1: KeyError: 'labels'"),
        ("print('CUDA out of memory. Tried'); raise NameError('ChildFailedError')", "oom",
         "CUDA out of memory"),
        ("import os; os.abort()", "crashed", "SIGABRT"),
        ("import os; os.kill(os.getpid(), 9)", "crashed", "SIGKILL"),
        ("import time; time.sleep(60)", "timeout", "no result within 1 s"),
    ],
)  # fmt: skip
def test_how_a_command_ends_is_how_its_point_ended(desk, script, status, told):
    """Out of memory is told apart; the others have code or signal, and last words."""
    _script(desk, script)
    desk.spec(f"{HEAD}run: python one.py {{k}}\nresults: {{json: last_line}}\npoint_timeout: 1\n")
    desk.submit()
    row = _row(desk)
    assert (row["status"], told in row["status_reason"]) == (status, True), row["status_reason"]


@pytest.mark.slow
def test_torch_itself_runs_out_of_memory(desk):
    """Of a real allocation that no machine has."""
    _script(desk, "import torch; torch.empty(1 << 50)")
    desk.spec(f"{HEAD}run: {shlex.quote(sys.executable)} one.py {{k}}\n")
    desk.submit()
    row = _row(desk)
    assert (row["status"], "allocate memory" in row["status_reason"]) == ("oom", True)


@LINUX
@pytest.mark.parametrize("apart", [False, True])
def test_what_a_command_leaves_running_ends_with_its_point(desk, apart):
    """In its process group, or in a session of its own."""
    _script(
        desk,
        "import os, subprocess, sys\n"
        f"child = subprocess.Popen(['sleep', '300'], start_new_session={apart})\n"
        "print('{\"child\": %d}' % child.pid)\n",
    )
    desk.spec(f"{HEAD}run: python one.py {{k}}\nresults: {{json: last_line}}\n")
    assert desk.run_process("submit", "sweep.yaml", "--cluster", "local").returncode == 0
    pid = json.loads(_row(desk)["own_results"])["child"]
    wait_for(f"end of {pid}", lambda: not is_alive(pid))


HOSTILE = [
    "a b",
    "$(touch gone)",
    "; touch gone",
    "it's",
    'say "x"',
    "*",
    "{k}",
    "\\n",
    "-x",
    "ü`id`",
]


@pytest.mark.parametrize("shell", [False, True])
def test_no_value_is_more_than_one_word(desk, shell):
    """With or without a shell, a value reaches the program as the sweep has it."""
    _script(desk, "import json, sys; print(json.dumps({'words': sys.argv[1:]}))")
    values = json.dumps(HOSTILE)
    desk.spec(
        f"workload: command\nshell: {json.dumps(shell)}\naxes: {{text: {values}}}\n"
        f"run: {shlex.quote(sys.executable)} one.py --a={{text}} {{text}}\n"
        "results: {json: last_line}\n"
    )
    assert desk.submit().returncode == 0
    told = {json.loads(row["own_axes"])["text"]: json.loads(row["own_results"])["words"]
            for row in desk.rows()}  # fmt: skip
    assert told == {text: [f"--a={text}", text] for text in HOSTILE}
    assert not (desk.folder / "gone").exists()


def test_each_visit_and_each_text_of_the_command_is_a_point_of_its_own(desk):
    """`run` and `results` are part of the id; `repeats` runs it again."""
    spec = f"{HEAD}run: echo {{k}}\nmeasure: {{repeats: 2}}\n"
    for text in (spec, spec, spec.replace("echo", "echo then"), f"{spec}shell: true\n"):
        desk.spec(text)
        assert desk.submit().returncode == 0
    rows = desk.rows()
    assert len(rows) == len({row["point_id"] for row in rows}) == 6
    assert sorted(row["visit"] for row in rows) == ["1", "1", "1", "2", "2", "2"]


@LINUX
def test_each_point_has_a_worker_of_its_own_that_one_template_forks(desk):
    """A Python for each would take 0.1 s, in which the sweep does nothing."""
    _script(
        desk,
        "import json, os; from pathlib import Path; mine = os.getppid(); "
        "words = Path(f'/proc/{mine}/cmdline').read_text().split(chr(0)); "
        "print(json.dumps({'worker': mine, 'forked': 'template' in words}))",
    )
    desk.spec(
        "workload: command\naxes: {k: [1, 2, 3]}\nrun: python one.py {k}\n"
        "results: {json: last_line}\n"
    )
    assert desk.submit().returncode == 0
    told = [json.loads(row["own_results"]) for row in desk.rows()]
    assert len({one["worker"] for one in told}) == 3
    assert all(one["forked"] for one in told)


KILLED = """\
workload: command
axes: {n_th: {start: 1, stop: 20, num: 20}}
run: "sleep 0.05; sleep 0.05 & wait; echo '{{\\"x\\": '{n_th}'}}'"
shell: true
results: {json: last_line}
"""


@LINUX
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_nothing_is_lost_whatever_is_killed(tmp_path, seed):
    """Command, worker, supervisor, submit or all of them, then the same command again."""
    spec = tmp_path / "kill.yaml"
    spec.write_text(KILLED)
    for found in torment(tmp_path, spec, points=20, rounds=3, seed=seed):
        assert found.good, found


def test_a_command_finds_python_and_its_folder(desk, monkeypatch):
    """It runs beside the sweep file; where PATH has no python, it is that of hpcsweep."""
    monkeypatch.setenv("PATH", "/nowhere")
    _script(
        desk, "import json, os, sys; print(json.dumps({'of': sys.executable, 'in': os.getcwd()}))"
    )
    desk.spec(f"{HEAD}run: python one.py {{k}}\nresults: {{json: last_line}}\n")
    assert desk.submit().returncode == 0
    told = json.loads(_row(desk)["own_results"])
    assert Path(told["in"]) == desk.folder
    assert Path(told["of"]).samefile(sys.executable)


def test_a_retry_and_a_sweep_of_python_find_the_folder(desk, monkeypatch):
    """That of the sweep file at its submission; of a dictionary the working directory."""
    _script(desk, "import sys; raise SystemExit(3)")
    desk.spec(f"{HEAD}run: python one.py {{k}}\n")
    desk.submit()
    _script(desk, "print()")
    assert desk.run("retry", "sweep").returncode == 0
    assert [row["status"] for row in desk.rows()] == ["crashed", "ok"]
    monkeypatch.chdir(desk.folder)
    sweep = {"name": "d", "workload": "command", "axes": {"k": [1]}, "run": "python one.py {k}"}
    assert hpcsweep.run(sweep).overall["status"].tolist() == ["ok"]

"""Plain rows hold what frames of the same table hold, and are refused for the same damage."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import quickstart
from hpcsweep.analysis import merged, plain_rows
from hpcsweep.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "point_id,status,model,algorithm,input_size,median_ms,batch_size"
ROW = "{},ok,a,gemm,64,1.5,1"
COMMAND = HEAD + ",own_results,loss,depth,name"


def both(path: Path) -> tuple[plain_rows.Rows, list[str]]:
    """Return a table as plain rows; check that a frame of the same columns has the same cells."""
    names = plain_rows.header(path)
    rows = plain_rows.read_rows(path, "s", names)
    frame = merged.read_table(path, "s", columns=names)
    for name in frame:
        assert plain_rows.column(rows, name) == plain_rows.column(frame, name), name
    return rows, names


def test_plain_rows_have_the_cells_of_frames(tmp_path: Path) -> None:
    """Every column of a table that was measured, whether filled or not."""
    rows, names = both(quickstart.collected(tmp_path).overall)
    assert len(names) > 100
    (first, *others) = rows.each()
    assert first["model"] == rows["model"][0]
    assert len(others) == len(rows) - 1
    some = rows[[True, *[False] * len(others)]]
    assert some["point_id"] == [first["point_id"]]
    assert some.and_those(some)["point_id"] == 2 * [first["point_id"]]
    assert some.assign(model=["b"])["model"] == ["b"]


def test_what_a_command_said_is_numbers_or_texts(tmp_path: Path) -> None:
    """A loss that diverged is unknown; the texts 3.10 and 3.1 are two."""
    path = tmp_path / "overall.csv"
    lines = []
    for number, (loss, depth, name) in enumerate((("0.5", 3, "3.10"), ("nan", 4, "3.1"))):
        said = f'"{{""loss"": ""{loss}"", ""depth"": {depth}, ""name"": ""{name}""}}"'
        lines.append(f"{ROW.format(number)},{said},{loss},{depth},{name}")
    path.write_text("\n".join([COMMAND, *lines, ""]))
    rows, _ = both(path)
    assert rows["loss"] == [0.5, None]
    assert rows["depth"] == [3, 4]
    assert rows["name"] == ["3.10", "3.1"]


@pytest.mark.parametrize(
    ("head", "row", "words"),
    [
        (HEAD.replace("status", "statvs"), ROW.format("1"), "no column status"),
        (HEAD, ROW.format("1").replace("64", "6x"), ":3: input_size is '6x', and needs a number"),
        (HEAD, ROW.format("1").replace("64", "inf"), ":3: input_size is 'inf', and needs a"),
        (HEAD, ROW.format("1").replace("1.5", "true"), ":3: median_ms is 'true', and needs a"),
        (HEAD, ROW.format("1").replace("ok", "fine"), ":3: no status 'fine'"),
        (HEAD, ROW.format("0"), ":3: point 0 stands there twice"),
        (HEAD, ROW.format("1") + ",more", "more cells than the header"),
    ],
)
def test_damage_is_named_as_frames_name_it(tmp_path: Path, head: str, row: str, words: str) -> None:
    """With its line, and with the command that writes the table again."""
    path = tmp_path / "overall.csv"
    path.write_text(f"{head}\n{ROW.format('0')}\n{row}\n")
    with pytest.raises(UsageError) as caught:
        plain_rows.read_rows(path, "s", HEAD.split(","))
    assert words in str(caught.value)
    assert str(caught.value).endswith("; run `hpcsweep collect s` again")

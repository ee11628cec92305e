"""Merged tables that are not as collect wrote them: edited by hand, or on a disk that fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hpcsweep.analysis import merged
from hpcsweep.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "point_id,status,model,algorithm,input_size,median_ms,batch_size"
ROW = "{},ok,a,gemm,64,1.5,1"


@pytest.mark.parametrize(
    ("head", "row", "words"),
    [
        (HEAD.replace("status", "statvs"), ROW.format("1"), "no column status"),
        (f"{HEAD},model", f"{ROW.format('1')},a", "column 'model' stands there twice"),
        (HEAD, ROW.format("1").replace("64", "6x"), ":3: input_size is '6x', and needs a number"),
        (HEAD, ROW.format("1").replace("64", "inf"), ":3: input_size is 'inf', and needs a"),
        (HEAD, ROW.format("1").replace("1.5", "true"), ":3: median_ms is 'true', and needs a"),
        (HEAD, ROW.format("1").replace("ok", "fine"), ":3: no status 'fine'"),
        (HEAD, ROW.format("0"), ":3: point 0 stands there twice"),
        (HEAD.replace("point_id", "point_is"), ROW.format("1"), "no column point_id"),
        (HEAD, "\0", "overall.csv"),
        (HEAD.removesuffix(",batch_size"), ROW.format("1"), "more cells than the header"),
    ],
)
def test_what_collect_would_not_have_written_is_named(
    tmp_path: Path, head: str, row: str, words: str
) -> None:
    """With its line, and with the command that writes the table again."""
    path = tmp_path / "overall.csv"
    path.write_text(f"{head}\n{ROW.format('0')}{',a' * head.endswith(',model')}\n{row}\n")
    with pytest.raises(UsageError) as caught:
        merged.read(path, "s")
    assert words in str(caught.value)
    assert str(caught.value).endswith("; run `hpcsweep collect s` again")


def test_a_table_as_it_was_written_is_read(tmp_path: Path) -> None:
    """Numbers as numbers, all else as text; a status of a point that has no time."""
    path = tmp_path / "overall.csv"
    path.write_text(f"{HEAD}\n{ROW.format('0')}\n1,oom,a,gemm,64,,1\n")
    table = merged.read(path, "s")
    assert (list(table["input_size"]), list(table["point_id"])) == ([64, 64], ["0", "1"])


def test_a_loss_that_diverged_is_a_number(tmp_path: Path) -> None:
    """Training writes what it measured: nan, or inf."""
    path = tmp_path / "overall.csv"
    rows = [f"{ROW.format(i)},{loss}" for i, loss in enumerate(("0.5", "nan", "inf"))]
    path.write_text("\n".join([f"{HEAD},train_loss", *rows, ""]))
    assert len(merged.read(path, "s")) == 3

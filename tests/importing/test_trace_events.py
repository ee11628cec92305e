"""A trace is a JSON document, packed or not, of which only what tells of convolutions is kept."""

from __future__ import annotations

import gzip
import json

import pytest

from hpcsweep.errors import ResultsError, UsageError
from hpcsweep.importing import trace_events

KERNEL = {"ph": "X", "cat": "kernel", "name": 'é \\ "', "ts": 1.5, "dur": 2, "args": {"a": [{}]}}
STEP = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "ts": 1, "dur": 2}
CONV = {"ph": "X", "cat": "cpu_op", "name": "aten::conv2d", "ts": 1, "dur": 2}
OTHERS = [
    {"ph": "X", "cat": "cpu_op", "name": "aten::convert", "ts": 1, "dur": 2},
    {"ph": "M", "name": "process_name"},
    {"ph": "X", "cat": "kernel", "name": 3},
]


def read(path, content):
    """Write and read."""
    path.write_bytes(content)
    return trace_events.read(path)


@pytest.mark.parametrize("packed", [False, True])
def test_what_is_needed_is_read_as_it_stands(tmp_path, packed):
    """Other events are None, and the rest of the document is there beside them."""
    head = {"before": {"a": [True, -1e-5]}, "deviceProperties": [{"id": 0, "name": "x"}]}
    whole = {**head, "traceEvents": [KERNEL, *OTHERS, STEP, CONV, "odd"]}
    content = json.dumps(whole, ensure_ascii=False, indent=1).encode()
    found = read(tmp_path / "a", gzip.compress(content) if packed else content)
    assert found == ([KERNEL, None, None, None, STEP, CONV, "odd"], head)


def test_a_list_alone_is_a_document(tmp_path):
    """As some programs write it, with a mark of the byte order before."""
    content = b"\xef\xbb\xbf" + json.dumps([KERNEL]).encode()
    assert read(tmp_path / "a", content) == ([KERNEL], {})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"traceEvents": [1, 2', "the file was cut"),
        (b'{"traceEvents": [{"a": "b', "the file was cut"),
        (b"", "the file was cut"),
        (b'{"traceEvents": [{"a": oops}]}', r"Expecting value: line 1 column 24"),
        (b'{"traceEvents": ' + b"[" * 200_000, "recursion"),
        (b'{"traceEvents": [' + b"7" * 5000 + b"]}", "digits"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\x03garbage", "cannot be read"),
        (gzip.compress(b'{"traceEvents": [1, 2]}' * 99, mtime=0)[:-20], "export it again"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 99, "is no JSON"),
    ],
)
def test_what_is_damaged_is_told_in_a_line(tmp_path, content, message):
    """With the path, whatever is in it."""
    with pytest.raises(ResultsError, match=message) as told:
        read(tmp_path / "a", content)
    assert str(told.value).startswith(str(tmp_path / "a"))
    assert "\n" not in str(told.value)


def test_more_than_fits_into_memory_is_refused(tmp_path, monkeypatch):
    """Packed by gzip, too: what counts is what it becomes."""
    monkeypatch.setattr(trace_events, "_MOST", 1 << 16)
    with pytest.raises(ResultsError, match="more than 65,536 bytes; profile fewer steps"):
        read(tmp_path / "a", gzip.compress(b"[" + b" " * (1 << 20) + b"]"))


@pytest.mark.parametrize(
    "content", [b"{}", b'{"traceEvents": 3}', b'{"other": []}', b'"traceEvents"', b"3"]
)
def test_another_document_is_no_trace(tmp_path, content):
    """It has no list of this name."""
    with pytest.raises(UsageError, match="no list 'traceEvents'"):
        read(tmp_path / "a", content)

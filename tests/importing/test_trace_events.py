"""A trace is a JSON document of any size, read piece by piece."""

from __future__ import annotations

import gzip
import json

import pytest

from hpcsweep.errors import ResultsError, UsageError
from hpcsweep.importing import trace_events

EVENTS = [{"name": f'é \\ " {"x" * n}', "n": n, "in": [{}, [1.5, None]]} for n in range(300)]


def elements(path, content, block=None, monkeypatch=None):
    """Return elements and other values of a document; `block` characters are read at once."""
    path.write_bytes(content)
    if block:
        monkeypatch.setattr(trace_events, "_BLOCK", block)
    with trace_events.opened(path) as file:
        document = trace_events.StreamedJson(path, file, "list")
        return list(document), document.head


@pytest.mark.parametrize("block", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("packed", [False, True])
def test_elements_are_those_of_json(tmp_path, monkeypatch, block, packed):
    """Wherever a block ends: in a number, a character of several bytes, an escape."""
    whole = {"before": 12345, "list": EVENTS[:40], "after": {"a": [True, -1e-5]}}
    content = json.dumps(whole, ensure_ascii=False, indent=1).encode()
    found = elements(
        tmp_path / "a", gzip.compress(content) if packed else content, block, monkeypatch
    )
    assert found == (whole["list"], {"before": 12345, "after": {"a": [True, -1e-5]}})


def test_a_list_alone_is_a_document(tmp_path):
    """As some programs write it, with a mark of the byte order before."""
    content = b"\xef\xbb\xbf" + json.dumps(EVENTS).encode()
    assert elements(tmp_path / "a", content) == (EVENTS, {})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"list": [1, 2', "the file was cut"),
        (b'{"list": [{"a": "b', "the file was cut"),
        (b'{"list": [1, 2]', "the file was cut"),
        (b"", "the file was cut"),
        (
            b'{"list": [{"a": oops, "b": "' + b"c" * 99 + b'"}]}',
            "after 0 elements: Expecting value",
        ),
        (b'{"list": [1, {"a" 1, "b": "' + b"c" * 99 + b'"}]}', "after 1 elements: Expecting ':'"),
        (b'{"list": [' + b"[" * 200_000, "nested too deep"),
        (b'{"list": ["' + b"a" * (1 << 20), "more than 65,536 characters"),
        (b"{1: 2}", "a key is missing"),
        (b"\x1f\x8b\x08\0\0\0\0\0\0\x03garbage", "cannot be read"),
        (gzip.compress(b'{"list": [1, 2]}' * 99, mtime=0)[:-20], "cannot be read"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 99, "no list 'list'"),
    ],
)
def test_what_is_damaged_is_told_in_a_line(tmp_path, monkeypatch, content, message):
    """With the path and the place, whatever is in it."""
    monkeypatch.setattr(trace_events, "_LARGEST", 1 << 16)
    with pytest.raises((ResultsError, UsageError), match=message) as told:
        elements(tmp_path / "a", content)
    assert str(told.value).startswith(str(tmp_path / "a"))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("content", [b"{}", b'{"list": 3}', b'{"other": []}', b'"list"', b"3"])
def test_another_document_is_no_trace(tmp_path, content):
    """It has no list of this name."""
    with pytest.raises(UsageError, match="no list 'list'"):
        elements(tmp_path / "a", content)


def test_a_number_that_python_does_not_read_is_told(tmp_path):
    """It has more digits than Python turns into a number."""
    path = tmp_path / "a.json"
    path.write_text('{"traceEvents": [{"ts": ' + "7" * 5000 + "}]}")
    with (
        pytest.raises(ResultsError, match="after 0 elements: a number of too many digits"),
        trace_events.opened(path) as file,
    ):
        list(trace_events.StreamedJson(path, file, "traceEvents"))

"""The pictures of the documentation: drawn by a script, shown by a page, and not stale."""

from __future__ import annotations

import re

import pytest

import docscripts
from docscripts import DOCS


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Draw all pictures anew."""
    return docscripts.load("pictures").draw(tmp_path_factory.mktemp("pictures"))


def test_the_committed_pictures_say_what_the_script_draws(drawn):
    """Their words and numbers are the same; outlines may differ between versions."""
    words = re.compile(r"<text[^>]*>([^<]*)</text>")
    for path in drawn:
        committed = (DOCS / "pictures" / path.name).read_text()
        assert words.findall(committed) == words.findall(path.read_text())

"""The recorded screens: of commands that exist, none wider than the terminal."""

from __future__ import annotations

import docscripts
from docscripts import DOCS


def test_every_screen_is_recorded_and_fits_80_columns():
    """Submit, watch, show and layers, each with its command on top."""
    page = (DOCS / "tutorial.md").read_text()
    screens = docscripts.load("screens")
    blocks = {found[2]: found[0].splitlines()[2:-2] for found in screens.BLOCK.finditer(page)}
    assert set(blocks) == {"running", "watch", "show", "layers"}
    for name, lines in blocks.items():
        assert lines[0].startswith("$ hpcsweep "), name
        assert len(lines) > 2, name
        assert max(map(len, lines)) <= screens.WIDTH, name

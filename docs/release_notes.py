"""Prints the notes of a release from CHANGELOG.md, for the release workflow.

::

    python docs/release_notes.py v0.2.0

It ends with 1 where the tag, `__version__` and the changelog do not name one version, and where
`tests/flaky.txt` names tests that failed by chance.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def notes(tag: str, changelog: str, package: str, flaky: str = "") -> str:
    """Return the section of a version; `ValueError` says what does not agree.

    `flaky` lists tests that fail by chance, one a line.
    """
    if flaky.strip():
        first = flaky.split(maxsplit=1)[0]
        raise ValueError(f"tests/flaky.txt: {first} fails by chance; mend what is listed")
    version = tag.removeprefix("v")
    found = re.search(r'^__version__ = "([^"]+)"$', package, re.MULTILINE)
    if not found or found[1] != version:
        raise ValueError(f"tag {tag}: src/hpcsweep/version.py has {found and found[1]}")
    heading = rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## |\Z)"
    section = re.search(heading, changelog, re.MULTILINE | re.DOTALL)
    if not section or not section[1].strip():
        raise ValueError(f"tag {tag}: CHANGELOG.md has no section [{version}]")
    return section[1].strip()


def main() -> int:
    """Print the notes of the tag that is the argument."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    package = (ROOT / "src/hpcsweep/version.py").read_text(encoding="utf-8")
    flaky = (ROOT / "tests/flaky.txt").read_text(encoding="utf-8")
    try:
        sys.stdout.write(f"{notes(sys.argv[1], changelog, package, flaky)}\n")
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The documentation as a site: pages from elsewhere fit in, and nothing needs a network."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys

import pytest

import docscripts
from docscripts import DOCS
from paths import ROOT

needs_mkdocs = pytest.mark.skipif(
    not importlib.util.find_spec("mkdocs"), reason="`make docs` installs mkdocs"
)
LINK = re.compile(r"\]\(([^)#\s]+)")


@pytest.fixture(scope="module")
def added():
    """Return the pages that are no files of docs/, by their place in the site."""
    return dict(docscripts.load("site_pages").pages())


def test_links_of_the_added_pages_lead_to_pages_of_the_site(added):
    """Relative to the site, where README is the home page."""
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.*")} | added.keys()
    links = [(name, to) for name in added for to in LINK.findall(added[name]) if "://" not in to]
    gone = [f"{name}: {to}" for name, to in links if to not in pages]
    assert gone == []


def test_every_page_is_in_the_navigation(added):
    """And the navigation names no page that is not there."""
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = re.findall(r"([\w/-]+\.md)$", nav, re.MULTILINE)
    files = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert sorted(named) == sorted([*files, *added])


def test_the_readme_lists_every_page():
    """So that whoever reads it on the web finds them all."""
    listed = (ROOT / "README.md").read_text().partition("## Documentation")[2]
    pages = {path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md")}
    assert sorted(pages - set(LINK.findall(listed))) == []


def build(project, folder):
    """Build the site of a project as `make docs` does."""
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(folder))
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        command, cwd=project, env=env, capture_output=True, text=True, check=False
    )


@needs_mkdocs
@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_fetches_nothing(tmp_path):
    """Links outside are for people; scripts, styles and fonts lie in the site."""
    done = build(ROOT, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    fetched = re.compile(r"""(?:src=|<link[^>]*href=|url\(|@import )["']?(?:https?:)?//""")
    pages = [*tmp_path.rglob("*.html"), *tmp_path.rglob("*.css")]
    assert len(pages) > 15
    assert [page.name for page in pages if fetched.search(page.read_text())] == []

"""Adds pages to the site that are not files in docs/; mkdocs calls the functions `on_...`.

The pages are README.md, CONTRIBUTING.md, CHANGELOG.md, SECURITY.md and benchmarks/README.md with
adapted links, and a page that lists every module with the first line of its docstring, in the order
of CONTRIBUTING's map.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "hpcsweep"
MODULES = "reference/modules.md"
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "figures.md",
}
CODE = re.compile(r"`[^`\n]+`")
LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)]*)?\))")
ROW = re.compile(r"^\| `([\w/]+/)` \| ([^|]+) \| ((?:`\w+`(?:, )?)+) \|$", re.MULTILINE)


class MapRow(NamedTuple):
    """A row of the map: a folder below the package, what it does, its modules."""

    folder: str
    meaning: str
    modules: list[str]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages to those of docs/."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - the tests do without mkdocs

    for target, text in pages():
        files.append(File.generated(config, target, content=text))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Remove the backslash before a bar in code, which GitHub needs and Python-Markdown shows."""
    plain = CODE.sub(lambda found: found[0].replace(r"\|", "|"), markdown)
    return LINK.sub(_relinked, plain)


def pages() -> Iterator[tuple[str, str]]:
    """Return the path in the site and the Markdown text of each page."""
    for source, target in PAGES.items():
        yield target, LINK.sub(_relinked, (ROOT / source).read_text(encoding="utf-8"))
    yield MODULES, modules_page()


def _relinked(link: re.Match[str]) -> str:
    path = link[2].removeprefix("../")
    target = PAGES.get(path) or (
        path.removeprefix("docs/") if path.startswith("docs/") else link[2]
    )
    return f"{link[1]}{target}{link[3]}"


def map_rows() -> list[MapRow]:
    """Return the rows of CONTRIBUTING's map of the code."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("## The map of the code")[2]
    return [
        MapRow("" if folder == "hpcsweep/" else folder, meaning, re.findall(r"\w+", names))
        for folder, meaning, names in ROW.findall(table)
    ]


def modules_page() -> str:
    """Return the page that lists every module."""
    parts = ["# Modules\n", "Every module of `src/hpcsweep/`, in reading order.\n"]
    for row in map_rows():
        parts += [f"## `{row.folder or 'hpcsweep/'}`\n"]
        parts += [f"{row.meaning[0].upper()}{row.meaning[1:]}.\n"]
        parts += ["| module | what it does |\n| --- | --- |"]
        parts += [f"| `{name}` | {_first_line(row.folder + name)} |" for name in row.modules]
        parts += [""]
    return "\n".join(parts)


def _first_line(module: str) -> str:
    tree = ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
    paragraph = (ast.get_docstring(tree) or "").split("\n\n", maxsplit=1)[0]
    text = " ".join(paragraph.split())
    return re.sub(r"``(.*?)``", r"`\1`", text).replace("|", "&#124;")

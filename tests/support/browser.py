"""Opens pages in Debian's Chromium, without a network."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = 180_000  # ms, for a machine that is busy with the rest of the suite
ALL_DRAWN = """document.querySelectorAll('.chart').length
    === document.querySelectorAll('.chart[data-drawn]').length"""


@contextmanager
def chromium() -> Iterator[Any]:
    """Yield a browser; skip where there is none."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if not program:
        pytest.skip("no Chromium (Debian: chromium)")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def opened(browser: Any, path: Path, **options: Any) -> Any:
    """Return a page that was opened as a file and has drawn all; `said` has its complaints."""
    context = browser.new_context(offline=True, **options)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.said = []
    page.on("console", lambda line: page.said.append(line.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.on("requestfailed", lambda request: page.said.append(request.url))
    page.goto(path.as_uri(), timeout=PATIENCE)
    page.wait_for_function(ALL_DRAWN)
    return page

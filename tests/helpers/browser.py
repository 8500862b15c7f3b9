"""A headless browser for tests of pages: Debian's Chromium through playwright, with its errors."""

import os
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page


class Browser:
    """errors: error messages of pages in the console, and uncaught exceptions."""

    def __init__(self, chromium: Any) -> None:
        self._chromium = chromium
        self.errors: list[str] = []

    def page(self, width: int, height: int = 800) -> "Page":
        """An empty page of this size in CSS pixels, with a profile of its own."""
        page: Page = self._chromium.new_context(viewport={"width": width, "height": height}).new_page()
        page.on("console", lambda line: self.errors.append(line.text) if line.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        return page


def until(page: "Page", condition: str) -> None:
    """Wait for a condition on the page (playwright's own waiting is a script that the pages' policies forbid)."""
    deadline = time.monotonic() + 20
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, f"{condition} has not come true"
        page.wait_for_timeout(20)


@pytest.fixture
def browser():
    """A browser for one test: playwright's event loop runs in the thread that opened it, and would be in the way of
    other tests' loops. Without Chromium or playwright the test skips, or fails where LBAR_REQUIRE_BROWSER is set."""
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        sync_playwright = None
    if chromium is None or sync_playwright is None:
        output = "needs a browser: Debian's chromium, and playwright of the test extra"
        pytest.fail(output) if os.environ.get("LBAR_REQUIRE_BROWSER") else pytest.skip(output)
    with sync_playwright() as playwright:
        # Nobody clicks here, and nobody listens.
        flags = ["--autoplay-policy=no-user-gesture-required", "--mute-audio"]
        opened = playwright.chromium.launch(executable_path=chromium, args=flags)
        yield Browser(opened)
        opened.close()

"""The report in a browser: on a phone and on a desktop, by keyboard only, with malicious names."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser import Browser, until
from reported import HARM, make_run, report, rescore

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

WIDTHS = [390, 1280]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with malicious names of clips and texts of queries."""
    run = make_run(tmp_path_factory.mktemp("shown"))

    def harm(matrix):  # type: ignore[no-untyped-def]
        matrix.file_names[:] = [HARM + str(n) + 40 * "long" for n in range(24)]
        matrix.query_texts[:] = [f"{text} {HARM}" for text in matrix.query_texts]
        return matrix

    rescore(run, harm)
    report(run, "--beside", f"{run}:mean")
    return run / "page.html"


def opened(browser: Browser, path: Path, width: int) -> "Page":
    """Open the page from disk; any request to another address is an error."""
    page = browser.page(width)
    page.on("request", lambda request: None if request.url == path.as_uri() or request.url.startswith("data:")
            else browser.errors.append(request.url))  # fmt: skip
    page.goto(path.as_uri())
    return page


@pytest.mark.parametrize("width", WIDTHS)
def test_page_fits_the_screen_and_shows_the_main_metric(browser: Browser, made: Path, width: int) -> None:
    page = opened(browser, made, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    big = page.locator(".big").first.bounding_box()
    assert big is not None
    assert big["y"] + big["height"] < 700, "the main metric is not in the first screen"
    assert page.locator(".big").first.inner_text().startswith("mAP@10 0.")
    size = page.locator(".big").first.evaluate("big => parseFloat(getComputedStyle(big).fontSize)")
    assert size >= 28
    images = page.locator("img")
    assert images.count() >= 11
    for image in images.all():
        assert image.evaluate("image => image.complete && image.naturalWidth > 0")
        box = image.bounding_box()
        assert box is not None
        assert 200 < box["width"] <= width
        assert image.is_visible()
    for summary in page.locator("summary").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "numbers scroll the page sideways"
    assert page.title() == "tiny · best – report"
    assert page.locator(".name").first.inner_text().startswith(HARM), "a name is not shown verbatim"
    assert browser.errors == []


def test_report_figures_are_side_by_side_on_desktop_and_stacked_on_phone(browser: Browser, made: Path) -> None:
    def tops(width: int) -> list[float]:
        boxes = [image.bounding_box() for image in opened(browser, made, width).locator("#learning img").all()]
        return [box["y"] for box in boxes if box]

    desk, phone = tops(1280), tops(390)
    assert desk[0] == desk[1] < desk[2] == desk[3]
    assert sorted(set(phone)) == phone


@pytest.mark.parametrize("width", WIDTHS)
def test_playing_a_clip_of_the_report_stops_the_others(browser: Browser, made: Path, width: int) -> None:
    page = opened(browser, made, width)
    page.evaluate("document.querySelectorAll('audio')[0].play()")
    until(page, "document.querySelectorAll('audio')[0].currentTime > 0.1")
    page.evaluate("document.querySelectorAll('audio')[1].play()")
    until(page, "document.querySelectorAll('audio')[1].currentTime > 0.1")
    assert page.evaluate("document.querySelectorAll('audio')[0].paused")
    assert browser.errors == []


def test_audio_players_in_the_report_are_reachable_by_keyboard(browser: Browser, made: Path) -> None:
    page = opened(browser, made, 1280)
    for _ in range(9):
        page.keyboard.press("Tab")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert page.evaluate("document.activeElement.textContent") == "Listening"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "AUDIO"
    page.keyboard.press("Space")
    until(page, "document.activeElement.currentTime > 0.1")


def test_report_page_can_be_printed(browser: Browser, made: Path) -> None:
    page = opened(browser, made, 1280)
    page.emulate_media(media="print")
    assert page.locator("audio").first.is_hidden()
    assert page.locator("img").first.is_visible()
    assert page.pdf().startswith(b"%PDF")

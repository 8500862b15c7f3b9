"""The search page in a browser: on a phone and on a desk, with names and queries that mean harm."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from browser import Browser, until
from served import Letters, Served, clip_of, model_of, searching, served, serving, write_tone

from submission.formats.score_matrix import read_scores
from system.models.embeddings import Embedded

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

SIZES = [(390, 844), (1280, 800)]
HARM = "<img src=x onerror=\"document.title='harmed'\"><script>document.title='harmed'</script>"
LONG = "a_name_without_a_blank_" * 12 + ".wav"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Served]:
    """Clips by the letters a, b and c; the first bears a harmful name and caption, the last one's file is gone."""
    names = [f"abba {HARM}.wav", LONG, "Rain on a roof.wav", "gone.wav"]
    text = Letters()
    values = torch.cat([text([f"ab {HARM}"]).values, torch.tensor([[0.0, 1, 0], [0, 0, 1], [0, 1, 2]])])
    clips = [
        clip_of(write_tone(tmp_path / f"{n}.wav", 3.0), name, [f"A caption of {name}", "Another"])
        for n, name in enumerate(names)
    ]
    Path(clips[3].path).unlink()
    about = {"recipe": "take_it_easy", "run": "2026-11-21_take_it_easy_s1_abc1234", "checkpoint": "finetune epoch 4"}
    about |= {"score": "the cosine of two embeddings", "examples": ["c", f"ab {HARM}", "a long query " * 6]}
    search = searching(model_of(text), clips, Embedded(values))
    with served(search, about=about | {"clips": 4}) as found:
        yield found


def find(page: "Page", query: str) -> list[str]:
    """The names that the page shows for a query, in its order."""
    page.get_by_label("Describe a sound").fill(query)
    page.keyboard.press("Enter")
    until(page, "document.querySelector('#status').textContent.includes('best first')")
    return page.locator(".name").all_inner_texts()


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_search_page_shows_results_and_plays_clips_and_shares_a_search(
    browser: Browser, site: Served, width: int, height: int
) -> None:
    page = browser.page(width, height)
    page.goto(site.address)
    assert find(page, "c")[0] == "Rain on a roof.wav"
    assert page.locator("#status").inner_text() == "4 clips, best first"
    assert page.locator(".result").first.locator(".score").inner_text() == "score 1.000"
    assert page.locator(".result").first.locator(".seconds").inner_text() == "1.0 s"
    assert "take_it_easy" in page.locator("#about").inner_text()
    assert "4 clips" in page.locator("#about").inner_text()

    page.evaluate("document.querySelector('audio').play()")
    until(page, "document.querySelector('audio').currentTime > 0.2")

    assert page.locator("#meaning").inner_text().startswith("Score: the cosine of two embeddings. Higher is a better")
    paths = [path.split("/")[-1] for path in page.locator(".path").all_inner_texts()]
    assert paths == ["2.wav", "3.wav", "0.wav", "1.wav"]
    until(page, "document.querySelector('.wave path')")
    page.locator(".result").nth(1).scroll_into_view_if_needed()
    until(page, "document.querySelectorAll('.wave').length === 3")  # the file of one is gone
    page.locator("summary").first.click()
    assert page.locator("details li").first.inner_text() == "A caption of Rain on a roof.wav"
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"

    assert page.url == f"{site.address}?query=c"
    assert find(page, "b b")[0] == LONG
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "a long name scrolls sideways"
    page.go_back()
    until(page, "document.querySelector('.name').textContent.startsWith('Rain')")
    assert page.get_by_label("Describe a sound").input_value() == "c"

    shared = browser.page(width, height)
    shared.goto(page.url)
    shared.wait_for_selector(".result")
    assert shared.locator(".name").first.inner_text() == "Rain on a roof.wav"
    assert browser.errors == []


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_search_page_shows_html_in_names_and_queries_as_text(
    browser: Browser, site: Served, width: int, height: int
) -> None:
    page = browser.page(width, height)
    page.goto(site.address)
    assert find(page, f"ab {HARM}")[0] == f"abba {HARM}.wav"
    page.locator("summary").first.click()
    assert page.locator("img, ol script").count() == 0
    assert page.title() == f"ab {HARM} – Search sounds"
    page.reload()
    page.wait_for_selector(".result")
    assert page.get_by_label("Describe a sound").input_value() == f"ab {HARM}"
    assert page.title() == f"ab {HARM} – Search sounds"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.errors == []


def test_search_page_is_usable_with_the_keyboard(browser: Browser, site: Served) -> None:
    page = browser.page(1280)
    page.goto(site.address)
    assert page.evaluate("document.activeElement.id") == "query"
    find(page, "c")
    reached: list[str] = []
    while len(reached) < 20 and "SUMMARY" not in reached:
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.tagName"))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", f"{reached[-1]} has the focus and does not show it"
    assert list(dict.fromkeys(reached)) == ["BUTTON", "AUDIO", "SUMMARY"]
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "query"
    page.keyboard.type("a/b")
    assert page.get_by_label("Describe a sound").input_value() == "a/b"


def test_search_page_shows_unknown_words_and_example_queries(browser: Browser, site: Served) -> None:
    page = browser.page(390)
    page.goto(site.address)
    assert page.locator("#unknown, #meaning, #further").filter(visible=True).count() == 0
    page.get_by_role("button", name="c", exact=True).press("Enter")
    until(page, "document.querySelectorAll('.name').length === 4")
    assert page.url == f"{site.address}?query=c"
    assert not page.locator("#unknown").is_visible()
    find(page, "zoo a b xyz")
    assert page.locator("#unknown").inner_text() == "Words that the model does not know: zoo, xyz"
    assert page.locator("img, ol script").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 390, "a long example scrolls sideways"
    assert browser.errors == []


def test_all_found_clips_are_reachable_with_the_keyboard(browser: Browser, tmp_path: Path) -> None:
    """The first ten, fifty more, and the rest; pictures are asked for where they are about to be seen."""
    path, asked = write_tone(tmp_path / "one.wav"), []
    clips = [clip_of(path, f"{n:02d}.wav") for n in range(75)]
    with served(searching(model_of(Letters()), clips, Embedded(torch.ones(75, 3))), about={"clips": 75}) as site:
        page = browser.page(390)
        page.on("request", lambda request: asked.append(request.url) if "/peaks/" in request.url else None)
        page.goto(site.address)
        assert len(find(page, "a")) == 10
        assert page.locator("#status").inner_text() == "10 clips, best first, of 75"
        for shown, label in ((60, "Show 50 more"), (75, "Show 15 more")):
            assert page.locator("#further").inner_text() == label
            page.locator("#further").focus()
            page.keyboard.press("Enter")
            until(page, f"document.querySelectorAll('.result').length === {shown}")
        assert not page.locator("#further").is_visible()
        assert page.evaluate("document.activeElement.querySelector('.name').textContent") == "60.wav"
        assert page.locator(".rank").all_inner_texts() == [str(n) for n in range(1, 76)]
        assert page.locator("#status").inner_text() == "75 clips, best first"
        assert 0 < len(asked) < 40
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert browser.errors == []


def test_search_page_shows_error_messages(browser: Browser, site: Served) -> None:
    page = browser.page(390)
    page.goto(site.address)
    find(page, "c")
    page.get_by_label("Describe a sound").fill("xyz")
    page.keyboard.press("Enter")
    page.wait_for_selector("#status.failed")
    assert page.locator("#status").inner_text() == "The model knows no word of this query; use other words"
    assert page.locator(".result").count() == 0
    assert find(page, "ccb")[0] == "gone.wav"
    assert page.locator("#status.failed").count() == 0
    page.evaluate("document.querySelector('audio').play().catch(() => {})")
    page.wait_for_selector(".mute")
    page.route("**/api/search*", lambda route: route.abort())
    page.get_by_label("Describe a sound").fill("a")
    page.keyboard.press("Enter")
    page.wait_for_selector("#status.failed")
    assert "does not answer" in page.locator("#status").inner_text()
    assert all("resource" in error for error in browser.errors), browser.errors


def test_search_page_does_not_show_a_late_answer_to_an_old_query(browser: Browser, site: Served) -> None:
    page = browser.page(1280)
    page.goto(site.address)
    held: list[Any] = []
    page.route("**/api/search?query=a", lambda route: held.append(route))
    page.get_by_label("Describe a sound").fill("a")
    page.keyboard.press("Enter")
    until(page, "document.querySelector('#status').textContent === 'Searching …'")
    assert find(page, "c")[0] == "Rain on a roof.wav"
    held[0].fulfill(json={"query": "a", "results": []})
    page.wait_for_timeout(300)
    assert page.locator(".name").first.inner_text() == "Rain on a roof.wav"
    assert browser.errors == []


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_search_page_finds_the_clip_of_a_known_caption(
    browser: Browser, unbroken: Path, root: Path, width: int, height: int
) -> None:
    """A trained run through its own door, and a caption for which it ranks the right clip first."""
    matrix = read_scores(unbroken / "scores/evaluation.npy")
    best = [matrix.clip_ids[column] for column in matrix.values.argmax(axis=1)]
    known = next(row for row, own in enumerate(matrix.relevant) if own == [best[row]])
    with serving(root, unbroken) as (_, port):
        page = browser.page(width, height)
        page.goto(f"http://127.0.0.1:{port}/")
        names = find(page, matrix.query_texts[known])
        assert names[0] == matrix.file_names[matrix.clip_ids.index(best[known])]
        page.locator("audio").first.evaluate("audio => audio.play()")
        until(page, "document.querySelector('audio').currentTime > 0.2")
    assert browser.errors == []

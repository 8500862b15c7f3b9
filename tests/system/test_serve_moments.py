"""The search page on long recordings: it shows the times of a query and plays from there."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import Browser, until
from served import Letters, Served, clip_of, model_of, searching, served, write_tone

from system.models.embeddings import Ragged
from system.models.scores import MomentScore
from system.moments.windows import Decoding, Grid
from system.ranking.embedding import embed_texts
from system.ranking.model import WindowSettings
from system.serve.search import Search, SearchQuery

LETTER = {letter: np.eye(3)[number] for number, letter in enumerate("abc")}
SOUNDS = {
    "late.wav": "....aaa.bb",
    "twice.wav": "aa....aaaa",
    "never.wav": "bbcc......",
}  # one letter per second; "." is silence


def search_in(folder: Path, by: str = "overlap") -> Search:
    """Recordings whose frames are letters, one a second."""
    clips = [replace(clip_of(write_tone(folder / name, 10.0)), seconds=10.0) for name in SOUNDS]
    series = [[LETTER.get(letter, np.zeros(3)) for letter in letters] for letters in SOUNDS.values()]
    values = torch.tensor(np.concatenate([np.array(one) for one in series]), dtype=torch.float32)
    model = model_of(Letters())
    model.score = MomentScore()
    embedded = Ragged(values, torch.tensor([len(one) for one in series]))
    windows = WindowSettings(model.moments, by, Decoding(windows=3))  # type: ignore[arg-type]
    return searching(model, clips, embedded, Grid(1.0, 0.5), windows)


@pytest.mark.parametrize("by", ["overlap", "thresholds"])
def test_search_returns_the_known_windows_of_synthetic_recordings(tmp_path: Path, by: str) -> None:
    (answer,) = search_in(tmp_path, by).answer([SearchQuery("a", 3)])
    assert answer.hits is not None
    assert [list(SOUNDS)[hit.row] for hit in answer.hits] == ["twice.wav", "late.wav", "never.wav"]
    twice, late, never = (hit.located for hit in answer.hits)
    assert twice is not None
    assert late is not None
    assert never is not None
    assert {window[:2] for window in twice.windows[:2]} == {(0.0, 2.0), (6.0, 10.0)}
    assert late.windows[0][:2] == (4.0, 7.0)
    assert late.edges.tolist() == list(range(11))
    assert (late.frames > 0.9).tolist() == [letter == "a" for letter in SOUNDS["late.wav"]]
    assert never.frames.max() < 0.1
    if by == "overlap":
        assert {len(one.windows) for one in (twice, late, never)} == {3}, "as many as its decoding has"
    else:
        odds = np.exp([-7.0, 3.0])  # of a cosine of 1, and of 0
        assert late.windows[0].score == pytest.approx(np.subtract(*(1 / (1 + odds))), abs=1e-6)


def test_recordings_with_too_many_frames_are_found_without_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(SOUNDS, "late.wav", "....aaa.bb.")
    monkeypatch.setattr("system.ranking.model.MAX_FRAMES", 10)
    (answer,) = search_in(tmp_path).answer([SearchQuery("a", 3)])
    assert "no times are found in 1 recording with more than 10 frames, first" in caplog.text
    assert answer.hits is not None
    located = {list(SOUNDS)[hit.row]: hit.located for hit in answer.hits}
    assert located["late.wav"] is None
    assert located["twice.wav"] is not None
    assert {window[:2] for window in located["twice.wav"].windows[:2]} == {(0.0, 2.0), (6.0, 10.0)}
    assert located["never.wav"] is not None
    assert located["never.wav"].frames.max() < 0.1


def test_search_ranks_recordings_by_the_log_odds_of_containing_a_moment(tmp_path: Path) -> None:
    """Against all labellings of ten frames, one by one."""
    search = search_in(tmp_path)
    (answer,) = search.answer([SearchQuery("ab", 3)])
    score, words = search.ranker.model.moments, embed_texts(search.ranker.model, ["ab"])
    for hit in answer.hits or []:
        frames = score.weights(score.cosines(search.pool.embedded.rows([hit.row]), words)[0][0]).scores.double()
        bits = torch.tensor([[n >> t & 1 for t in range(10)] for n in range(1, 1024)]).double()
        turns = bits.diff(dim=1)
        weights = bits @ frames + score.enter * (turns == 1).sum(1) + score.leave * (turns == -1).sum(1)
        assert hit.score == pytest.approx(weights.logsumexp(0).item(), abs=1e-4)


def test_http_answer_contains_windows_and_frames(tmp_path: Path) -> None:
    with served(search_in(tmp_path)) as site:
        (first, second) = site.search("a", count=2).json["results"]
    assert second["file_name"] == "late.wav"
    found = second["moments"]
    assert found.keys() == {"windows", "edges", "frames"}
    assert found["windows"][0][:2] == [4.0, 7.0]
    assert len(found["edges"]) == len(found["frames"]) + 1 == 11
    assert first["moments"]["windows"][0][2] > 0.9


@pytest.fixture
def unheard(tmp_path: Path) -> Iterator[Served]:
    """Recordings with published frames only."""
    search = search_in(tmp_path)
    for name in SOUNDS:
        np.savez(tmp_path / name.replace(".wav", ".npz"), features=np.zeros((10, 3)))
    clips = [clip_of(tmp_path / name.replace(".wav", ".npz")) for name in SOUNDS]
    search.clips = [replace(clip, seconds=10.0) for clip in clips]
    with served(
        search, about={"clips": 3, "recipe": "r", "run": "r", "checkpoint": "c", **search.ranker.meanings}
    ) as found:
        yield found


def test_found_recordings_with_published_frames_have_no_audio_links(unheard: Served) -> None:
    for result in unheard.search("a", count=3).json["results"]:
        assert result["file_name"].endswith(".npz")
        assert result["moments"]["windows"]
        assert result.keys().isdisjoint({"audio", "peaks"})


@pytest.mark.slow
def test_search_page_without_audio_has_no_players(browser: Browser, unheard: Served) -> None:
    page = browser.page(390)
    page.goto(f"{unheard.address}?query=a")
    until(page, "document.querySelectorAll('.timeline').length === 3")
    late = page.locator(".result").nth(1)
    assert late.locator(".windows .window").all_inner_texts()[0].startswith("0:04.0 – 0:07.0, ")
    assert page.locator("audio, .windows button, .wave").count() == 0
    assert late.inner_text().endswith("No audio: the model reads published frames.")
    late.locator(".timeline").click()
    assert not page.locator("#meaning").inner_text().endswith("Click to hear from there.")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert browser.errors == []


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Served]:
    search = search_in(tmp_path)
    with served(
        search, about={"clips": 3, "recipe": "r", "run": "r", "checkpoint": "c", **search.ranker.meanings}
    ) as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_search_page_shows_moment_windows_and_plays_the_audio_from_a_clicked_window(
    browser: Browser, site: Served, width: int
) -> None:
    page = browser.page(width)
    page.goto(f"{site.address}?query=a")
    until(page, "document.querySelectorAll('.timeline').length === 3")
    late = page.locator(".result").nth(1)
    assert late.locator(".windows button").all_inner_texts()[0].startswith("▶ 0:04.0 – 0:07.0, ")
    picture, window = late.locator(".frames").bounding_box(), late.locator("rect").first.bounding_box()
    assert picture is not None
    assert window is not None
    assert window["height"] > 40
    assert (window["x"] - picture["x"]) / picture["width"] == pytest.approx(0.4, abs=0.02)
    assert window["width"] / picture["width"] == pytest.approx(0.3, abs=0.02)
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    late.locator(".timeline").click(position={"x": 0.8 * picture["width"], "y": 60})
    until(page, "document.querySelectorAll('audio')[1].currentTime > 8.1")
    assert page.evaluate("document.querySelectorAll('audio')[1].currentTime") < 9.5
    button = late.locator(".windows button").first
    button.focus()
    page.keyboard.press("Enter")
    until(page, "(t => t > 4.1 && t < 6)(document.querySelectorAll('audio')[1].currentTime)")
    page.locator(".result").first.locator(".windows button").first.click()
    until(page, "document.querySelectorAll('audio')[1].paused")
    assert page.locator(".cursor").nth(1).is_visible()
    assert page.locator("#meaning").inner_text().startswith("Recordings are ordered by ")
    assert page.locator("#meaning").inner_text().endswith(". Click to hear from there.")
    assert browser.errors == []

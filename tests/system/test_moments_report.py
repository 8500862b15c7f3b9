"""The report of a run of moments, in a browser: windows are seen on the time axis and heard from there."""

import re
from pathlib import Path

import pytest
import tiny
import tiny_moments
from browser import Browser, until
from threads import one_thread  # noqa: F401  a fixture

from submission.__main__ import main as submission
from submission.metrics.moment_metrics import score_moments
from submission.report.elements import figure
from submission.runs.finished import FinishedMoments, open_finished_moments
from system.__main__ import main

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    manifest = tiny_moments.make_moments(folder / "world")
    path = tiny.write_recipe(folder / "r.yaml", tiny_moments.recipe(manifest, folder, epochs=4))
    assert main(["run", str(path), "--out", str(folder / "run")]) == 0
    run = str(folder / "run")
    assert submission(["report", run, "--beside", f"{run}:thresholds"]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def opened(made: Path) -> FinishedMoments:
    return open_finished_moments(str(made))


def test_moment_report_shows_the_metrics_of_the_run(made: Path, opened: FinishedMoments) -> None:
    html = (made / "report.html").read_text()
    ranked = opened.ranked
    assert ranked.figures is not None
    assert ranked.random is not None
    for name, value in (
        ("R1@0.7", ranked.figures["R1@0.7"]),
        ("mAP", ranked.figures["mAP"]),
        ("mAP", ranked.random["mAP"]),
    ):
        assert figure(name, value) in html
    assert "short, over 0 to 10 s" in html
    assert "This entry minus each of the other systems" in html


def test_moment_report_lists_worst_queries_first(made: Path, opened: FinishedMoments) -> None:
    predictions = {answer.qid: answer.windows for answer in opened.answers}
    found = score_moments(predictions, opened.truth.windows())
    worst = min(found.ious + found.precisions_at())
    shown = [float(iou) for iou in re.findall(r"IoU of the first window ([0-9.]+)", (made / "report.html").read_text())]
    first = found.ious[(found.ious + found.precisions_at()).argmin()]
    assert shown[0] == pytest.approx(first, abs=1e-4), worst
    assert max(shown) == pytest.approx(max(found.ious), abs=0.2)


@pytest.mark.parametrize("width", [390, 1280])
def test_report_page_shows_moment_windows_and_plays_the_audio_from_a_clicked_window(
    browser: Browser, made: Path, opened: FinishedMoments, width: int
) -> None:
    page = browser.page(width)
    page.goto((made / "report.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    article = page.locator("article").first
    asked = next(q for q in opened.truth.queries.values() if q.vid in article.locator(".query-note").inner_text()
                 and q.query == article.locator("h4").inner_text())  # fmt: skip
    assert asked.windows is not None
    assert article.locator("rect.true").count() == len(asked.windows)
    box, window = article.locator(".timeline").bounding_box(), article.locator("rect.true").first.bounding_box()
    assert box is not None
    assert window is not None
    assert window["height"] > 15
    assert (window["x"] - box["x"]) / box["width"] == pytest.approx(asked.windows[0][0] / 8, abs=0.02)
    article.locator(".timeline").click(position={"x": box["width"] / 2, "y": 20})
    until(page, "document.querySelector('audio').currentTime > 4.1")
    assert page.evaluate("document.querySelector('audio').currentTime") < 6
    article.locator("button").first.focus()
    page.keyboard.press("Enter")
    start = asked.windows[0][0]
    until(page, f"(t => t > {start} && t < {start} + 1.5)(document.querySelector('audio').currentTime)")
    assert browser.errors == []


def test_missing_recording_is_reported_in_the_moment_report(
    made: Path, opened: FinishedMoments, tmp_path: Path
) -> None:
    for path in (made.parent / "world/evaluation").iterdir():
        path.rename(tmp_path / path.name)
    try:
        assert submission(["report", str(made), "--out", str(tmp_path / "page.html")]) == 0
    finally:
        for path in tmp_path.glob("*.wav"):
            path.rename(made.parent / "world/evaluation" / path.name)
    assert "no longer exists" in (tmp_path / "page.html").read_text()

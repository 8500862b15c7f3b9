"""The page of a finished run: its numbers, its sections, its audio, and its time axes."""

import base64
import io
import json
import re
import shutil

import numpy as np
import pytest
import soundfile
from ranked import NAMES
from recorded_run import change, write_moments_run, write_run

from submission.__main__ import main
from submission.formats.score_matrix import read_scores, write_scores
from submission.report.audio import AudioStore
from submission.report.moments import make_axis
from submission.report.page import clock, dotted_values
from submission.runs.entry import open_entry
from submission.runs.record import FrameScores


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reported")
    write_run(folder / "run")
    write_moments_run(folder / "moments")
    return folder


@pytest.fixture(scope="module")
def page(made):
    assert main(["report", f"{made}/run:best", "--beside", f"{made}/run:mean", "--beside", f"{made}/run:last"]) == 0
    return (made / "run/report.html").read_text(encoding="utf-8")


def sections(html: str) -> list[str]:
    return re.findall(r'<section id="(\w+)"', html)


def audio_of(html: str) -> list[str]:
    return json.loads(re.findall(r'id="audio">(.*?)</script>', html, re.DOTALL)[0])


def test_page_has_the_numbers_of_the_run_and_of_others(made, page):
    expected = ["result", "settings", "ranks", "lengths", "listening", "run", "learning", "caveats"]
    assert sections(page) == expected == re.findall(r'<a href="#(\w+)"', page)
    best = json.loads((made / "run/result.json").read_text())["rank"]["best"]
    for number in (
        best["mAP@10"],
        best["R@1"],
        best["chance"],
        best["untrained"],
        *best["interval"],
        *best["bootstrap"],
    ):
        assert f"{number:.4f}" in page
    mean = open_entry(f"{made}/run:mean").summary.values["mAP@10"]
    assert f"{best['mAP@10'] - mean:+.4f}" in page
    for words in ("2 ranked clips", "all captions alike", "x.wav: cut", "trained parameters", "1.00 hours"):
        assert words in page
    assert page.count("data:image/svg+xml;base64,") == 4


def test_page_needs_no_other_files_and_escapes_strangers_texts(made, tmp_path):
    run = shutil.copytree(made / "run", tmp_path / "run")
    harm = "<script>alert(1)</script>\"'&amp;"
    matrix = read_scores(run / "scores/best.npy")
    vars(matrix).update(values=np.array(matrix.values), file_names=[harm + name for name in NAMES])
    vars(matrix).update(query_texts=[harm] * 24)
    write_scores(run / "scores/best.npy", matrix)
    assert main(["report", f"{run}:best", "--out", str(tmp_path / "page.html")]) == 0
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert" in html
    assert not re.findall(r'(?:src|href)="(?!#|data:)', html)


def test_worst_queries_come_first_with_their_clips_and_audio(made, page):
    summary = open_entry(f"{made}/run:best").summary
    first = summary.queries.ranks[:, 0]
    shown = [int(rank) for rank in re.findall(r"first relevant clip at rank (\d+)", page)]
    assert shown == sorted(first, reverse=True)[:10]
    players = [int(number) for number in re.findall(r'data-clip="(\d+)"', page)]
    audio = audio_of(page)
    assert sorted(set(players)) == list(range(len(audio))), "each clip is embedded once"
    assert page.count("✓ relevant") + page.count("✗ not relevant") == len(players)
    wave, rate = soundfile.read(io.BytesIO(base64.b64decode(audio[0].partition(",")[2])))
    assert rate == 24_000
    assert 0.2 < len(wave) / rate < 1.6


def test_clips_without_audio_are_named(made, tmp_path):
    run = shutil.copytree(made / "run", tmp_path / "run")
    table = run / "scores/best.clips.csv"
    table.write_text(table.read_text().replace("/audio/", "/gone/"))
    change(run / "result.json", broken={})
    assert main(["report", str(run)]) == 0
    html = (run / "report.html").read_text(encoding="utf-8")
    assert audio_of(html) == []
    assert "no audio: " in html


def test_page_beside_a_run_of_another_edition_is_written(made, tmp_path):
    later = shutil.copytree(made / "run", tmp_path / "later")
    result = json.loads((later / "result.json").read_text())
    result["rank"]["best"]["edition"] = "2025"
    (later / "result.json").write_text(json.dumps(result))
    assert main(["report", str(later), "--beside", f"{made}/run"]) == 0
    assert "mAP@16" in (later / "report.html").read_text(encoding="utf-8")


def test_settings_that_differ_are_listed(made, tmp_path):
    run = shutil.copytree(made / "run", tmp_path / "run")
    recipe = json.loads((run / "resolved.json").read_text())
    recipe["stages"]["only"]["losses"][0]["margin"] = 0.35
    (run / "resolved.json").write_text(json.dumps(recipe))
    assert main(["report", str(run), "--beside", f"{made}/run"]) == 0
    html = (run / "report.html").read_text(encoding="utf-8")
    cells = re.findall(r"<td>stages\.only\.losses\.0\.margin</td><td>(.*?)</td><td>(.*?)</td>", html)
    assert cells == [("0.35", "0.2")]
    assert "stages.only.optimizer" not in html.partition("<pre>")[0]
    assert dict(dotted_values({"a": {"b": [1, {"c": 2}]}, "d": []})) == {"a.b.0": 1, "a.b.1.c": 2, "d": []}


def test_page_of_moments_shows_windows_on_a_time_axis(made):
    assert main(["report", f"{made}/moments", "--out", str(made / "m.html")]) == 0
    html = (made / "m.html").read_text(encoding="utf-8")
    assert sections(html) == ["result", "lengths", "listening", "run", "learning", "caveats"]
    assert "R1@0.7 66.67 %" in html
    assert "25.00 %" in html, "random windows"
    shown = [float(value) for value in re.findall(r"average precision ([0-9.]+)", html)]
    assert shown == sorted(shown)
    assert html.count('<rect class="true"') == 4
    run = open_entry(f"{made}/moments")
    frames = FrameScores(np.array([0.0, 1.0, 60.0]), np.array([0.25, 0.75]))
    axis = make_axis(run, run.answers[0], frames, {}, AudioStore(1))
    assert axis["found"] == [(0, 9, 1), (30, 40, pytest.approx(5 / 9))]
    assert axis["outline"] == "M0 100 L0.00 75.0 L1.00 75.0 L1.00 25.0 L60.00 25.0 L60.00 100"
    assert (axis["audio"], axis["seconds"]) == (None, 60)
    assert (clock(30), clock(65.04), clock(59.97)) == ("0:30.0", "1:05.0", "1:00.0")
    assert "0:30.0 – 0:40.0" in html

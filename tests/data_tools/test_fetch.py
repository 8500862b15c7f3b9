"""Fetching: the selection, the files on disk after faults and kills, and the tables of the folder."""

import csv
import hashlib
import io
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import soundfile
from sandboxes import FAST, UNLIMITED, everything, serving, write_scores

from data_tools.__main__ import main
from data_tools.freesound import fetch as fetching
from data_tools.freesound.client import Client
from data_tools.freesound.selection import LICENCES, PREFERENCES, Criteria, select
from data_tools.freesound.sounds import Sound
from data_tools.freesound.store import Store
from data_tools.leakage.exclusion import read_exclusions
from data_tools.manifest import read_manifest
from data_tools.sandbox.answers import Answers
from data_tools.sandbox.corpus import NAMES
from data_tools.sandbox.verb import make_answers

SOUNDS = 160


def write_list(path: Path, ids: list[object]) -> Path:
    path.write_text("\n".join(["sound_id", *map(str, ids), "Not found"]) + "\n")
    return path


@pytest.fixture(scope="module")
def answers() -> Answers:
    return make_answers(SOUNDS, 1, 0.0, 0)


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the sandbox's sounds."""
    path = tmp_path_factory.mktemp("crawled") / "store.sqlite"
    assert main(["sandbox", "--port", "0", "--sounds", str(SOUNDS), "--then", f"crawl {path}"]) == 0
    return path


@pytest.fixture
def store(crawled: Path) -> Iterator[Store]:
    opened = Store(crawled)
    yield opened
    opened.close()


def test_each_selection_rule_of_fetch_drops_the_expected_sounds(store: Store, answers: Answers, tmp_path: Path) -> None:
    corpus, numbers = answers.corpus, np.arange(SOUNDS)
    rows = everything(answers)
    rows.append((10**8, 0.9, "unknown"))
    seconds, licences = corpus.seconds(numbers), corpus.licences(numbers)
    preferences = corpus.preferences(numbers)
    enough = (1 - numbers / SOUNDS) > 0.4
    fit = (seconds >= 3) & (seconds <= 120)
    free = np.isin(licences, ["Creative Commons 0", "Attribution"])
    willing = preferences != "no-gen-ai"
    expected = np.flatnonzero(enough & fit & free & willing)
    excluded = [corpus.id(int(expected[3])), corpus.id(int(expected[9])), 5]
    lists = read_exclusions([write_list(tmp_path / "never.csv", excluded)])
    wanted = Criteria(0.4, licences=("cc0", "by"))
    found = select(store, write_scores(tmp_path / "scores.csv", rows), wanted, lists)
    kept = [corpus.id(int(number)) for number in expected if corpus.id(int(number)) not in excluded]
    assert [sound.id for sound in found.chosen] == kept, "by falling score"
    assert found.refused == {
        "score of 0.4 or less": int((~enough).sum()),
        "not in the store, or gone from Freesound": 1,
        "shorter than 3 s or longer than 120 s": int((enough & ~fit).sum()),
        "licence other than cc0, by": int((enough & fit & ~free).sum()),
        "the uploader's AI preference": int((enough & fit & free & ~willing).sum()),
        "on an exclusion list": 2,
    }
    assert {key: [Path(name).name for name in names] for key, names in found.excluded.items()} == {
        str(excluded[0]): ["never.csv"],
        str(excluded[1]): ["never.csv"],
    }
    everyone = select(
        store, tmp_path / "scores.csv", Criteria(0.4, preferences=PREFERENCES, licences=tuple(LICENCES)), lists
    )
    assert len(everyone.chosen) == (enough & fit).sum() - 2


def test_fetch_drops_sounds_with_a_score_equal_to_the_threshold(store: Store, answers: Answers, tmp_path: Path) -> None:
    number = int(np.flatnonzero(answers.corpus.seconds(np.arange(SOUNDS)) == 8)[0])
    row = (answers.corpus.id(number), 0.2, "x")
    lists = read_exclusions([write_list(tmp_path / "never.csv", [1])])
    scores = write_scores(tmp_path / "scores.csv", [row])
    assert not select(store, scores, Criteria(0.2, preferences=PREFERENCES), lists).chosen
    assert select(store, scores, Criteria(0.1999999, preferences=PREFERENCES), lists).chosen


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("", "scores.csv: the file is empty"),
        ("freesound_id,score,text\n", "has a header but no rows"),
        ("freesound_id,scores,text\n1,0.5,a\n", "no column score"),
        ("freesound_id,score,text\n1,0.5,a\n1,0.6,a\n", "line 3: the id '1' comes twice"),
        ("freesound_id,score,text\n12,0.5,a\n 012,0.6,a\n", "line 3: the id ' 012' comes twice"),
        ("freesound_id,score,text\n" + "9" * 19 + ",0.5,a\n", "9' is not a Freesound id"),
        ("freesound_id,score,text\n../x,0.5,a\n", "line 2: the id '../x' is not a Freesound id"),
        (
            "freesound_id,score,text\n7,high,a\n",
            "line 2: the id '7' has no score from 0 to 1",
        ),
        (
            "freesound_id,score,text\n7,nan,a\n",
            "line 2: the id '7' has no score from 0 to 1",
        ),
        ('freesound_id,score,text\n7,"0.5,a\n', "line 2: not a CSV table"),
        ("freesound_id,score,text\n7,0.5,a\n8,0.5\n", "line 3: 2 values for 3 columns"),
        ("freesound_id,score,text\n7,0.5,a\n8,0.\n", "line 3: 2 values for 3 columns"),
    ],
)
def test_fetch_refuses_invalid_tables_of_scores(
    crawled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, output: str
) -> None:
    (tmp_path / "scores.csv").write_text(text)
    never = write_list(tmp_path / "never.csv", [1])
    arguments = ["--scores", tmp_path / "scores.csv", "--exclude", never, "--out", tmp_path / "out"]
    assert main(["fetch", str(crawled), *map(str, arguments)]) == 1
    errors = capsys.readouterr().err
    assert output in errors
    assert len(errors.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_fetch_requires_an_exclusion_list(crawled: Path, tmp_path: Path) -> None:
    arguments = ["--scores", str(tmp_path / "scores.csv"), "--out", str(tmp_path / "out")]
    assert main(["fetch", str(crawled), *arguments]) == 2


def command(crawled: Path, out: Path, *arguments: str) -> list[str]:
    """Return the command to fetch with the tables next to the folder."""
    tables = ["--scores", str(out.parent / "scores.csv"), "--exclude", str(out.parent / "never.csv")]
    return [sys.executable, "-m", "data_tools", "fetch", str(crawled), *tables, "--out", str(out), *arguments]


def fetch(crawled: Path, out: Path, settings: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Fetch in this process; most of the time of a new one would be its imports."""
    argv, output, errors = command(crawled, out, *arguments), io.StringIO(), io.StringIO()
    with patch.dict(os.environ, settings), redirect_stdout(output), redirect_stderr(errors):
        status = main(argv[3:])
    return subprocess.CompletedProcess(argv, status, output.getvalue(), errors.getvalue())


def with_other_metadata(monkeypatch: pytest.MonkeyPatch, change: Callable[[sqlite3.Connection], None]) -> None:
    """Change the metadata of sounds from the moment a fetch requests them."""
    look_up = fetching.look_up

    async def asked(client: Client, store: Store, ids: list[int]) -> dict[int, Sound | None]:
        found = await look_up(client, store, ids)
        change(store.database)
        return found

    monkeypatch.setattr(fetching, "look_up", asked)


def copy(store: Path, to: Path) -> None:
    with closing(sqlite3.connect(store)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)


def expected_numbers(answers: Answers, excluded: list[int]) -> tuple[list[int], list[int]]:
    """Return the sounds above 0.2 that can be fetched, and those that are permanently broken."""
    corpus, numbers = answers.corpus, np.arange(answers.corpus.size)
    fit = (corpus.seconds(numbers) >= 3) & (corpus.seconds(numbers) <= 120) & (1 - numbers / corpus.size > 0.2)
    fit &= corpus.preferences(numbers) != "no-gen-ai"
    chosen = [int(number) for number in np.flatnonzero(fit) if corpus.id(int(number)) not in excluded]
    broken = [number for number in chosen if corpus.is_broken(number)]
    return [number for number in chosen if number not in broken], broken


def assert_folder(out: Path, answers: Answers, excluded: list[int], rate: int) -> None:
    """Assert that every expected file is present, complete and listed, and no other."""
    corpus = answers.corpus
    numbers, broken = expected_numbers(answers, excluded)
    names = {f"{corpus.id(number)}.flac" for number in numbers}
    output = {"manifest.jsonl", "ATTRIBUTION.csv", "licences.csv", "lost.csv"}
    found = {path.name for path in out.iterdir() if not path.name.startswith("fetched.sqlite")}
    assert found == names | output
    clips = {clip.file_name: clip for clip in read_manifest(out / "manifest.jsonl")}
    with (out / "ATTRIBUTION.csv").open(newline="", encoding="utf-8") as file:
        attribution = {row["file_name"]: row for row in csv.DictReader(file)}
    assert clips.keys() == attribution.keys() == names
    for number in numbers:
        sound, name = corpus.sound(number, ""), f"{corpus.id(number)}.flac"
        samples, found_rate = soundfile.read(out / name)
        assert found_rate == rate
        assert samples.ndim == 1
        assert abs(len(samples) / rate - sound["duration"]) < 0.1
        clip, row = clips[name], attribution[name]
        assert clip.captions == [f"sound number {number}"]
        assert (clip.freesound_id, clip.split, clip.source) == (str(sound["id"]), "train", "freesound")
        assert clip.seconds == len(samples) / rate
        assert (row["title"], row["uploader"], row["licence"]) == (sound["name"], sound["username"], sound["license"])
        assert (clip.licence, clip.uploader) == (sound["license"], sound["username"])
        assert row["page"] == f"https://freesound.org/people/{sound['username']}/sounds/{sound['id']}/"
        assert row["sha256"] == hashlib.sha256((out / name).read_bytes()).hexdigest()
    with (out / "lost.csv").open(newline="") as file:
        lost = {int(row["freesound_id"]): row["why"] for row in csv.DictReader(file)}
    assert lost.keys() == {corpus.id(number) for number in broken}
    assert all("cannot be decoded" in why for why in lost.values())
    with (out / "licences.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sum(int(row["files"]) for row in rows) == len(numbers)
    hours = sum(clip.seconds or 0 for clip in clips.values()) / 3600
    assert sum(float(row["hours"]) for row in rows) == pytest.approx(hours, abs=0.002)


@pytest.mark.slow
def test_fetch_stores_exactly_the_selected_sounds(crawled: Path, answers: Answers, tmp_path: Path) -> None:
    """Faults occur, and titles would be dangerous file names; a second run fetches nothing."""
    out = tmp_path / "out"
    write_scores(tmp_path / "scores.csv", everything(answers))
    excluded = [answers.corpus.id(number) for number in expected_numbers(answers, [])[0][5:50:20]]
    write_list(tmp_path / "never.csv", list(excluded))
    with serving("--sounds", str(SOUNDS), "--fault", "reset=0.07", "--fault", "truncate=0.07") as settings:
        first = fetch(crawled, out, settings, *FAST, "--rate", "16000")
        assert first.returncode == 0, first.stderr
        assert_folder(out, answers, excluded, 16_000)
        before = {path: path.stat().st_mtime_ns for path in out.glob("*.flac")}
        assert fetch(crawled, out, settings, *FAST, "--rate", "16000").returncode == 0
        assert {path: path.stat().st_mtime_ns for path in out.glob("*.flac")} == before
        deleted = next(iter(before))
        deleted.unlink()
        other = fetch(crawled, out, settings, *FAST, "--rate", "8000")
        assert "were fetched with rate 16000, not 8000" in other.stderr
        assert fetch(crawled, out, settings, *FAST, "--rate", "16000").returncode == 0
        assert deleted.exists()
    assert "3  not fetched: on an exclusion list" in first.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"scores.csv", "never.csv", "out"}, "nothing left the folder"


@pytest.mark.slow
def test_titles_and_uploaders_are_never_used_as_paths(
    crawled: Path, answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names such as ../../x, CON, 300 characters, or control characters appear only in the tables, unchanged."""
    home = tmp_path / "a" / "b"
    home.mkdir(parents=True)
    write_scores(home / "scores.csv", everything(answers))
    write_list(home / "never.csv", [1])
    store = home / "copy.sqlite"
    copy(crawled, store)

    def rename(database: sqlite3.Connection) -> None:
        rows = database.execute("SELECT id FROM sounds WHERE duration = 8 ORDER BY id").fetchall()
        for (sound_id,), name in zip(rows, NAMES * 20, strict=False):
            database.execute("UPDATE sounds SET name = ?, username = ? WHERE id = ?", (name, name, sound_id))

    with_other_metadata(monkeypatch, rename)
    with serving("--sounds", str(SOUNDS)) as settings:
        done = fetch(store, home / "out", settings, *FAST, "--limit", "20", "--seconds", "8", "8", "--rate", "8000")
    assert done.returncode == 0, done.stderr
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    audio = {name for name in files if name.startswith("a/b/out/") and name.endswith(".flac")}
    assert len(audio) == 20
    assert all(name.removeprefix("a/b/out/").removesuffix(".flac").isdigit() for name in audio)
    tables = {"manifest.jsonl", "ATTRIBUTION.csv", "licences.csv", "lost.csv"}
    assert {name for name in files - audio if "sqlite" not in name} == {
        *("a/b/scores.csv", "a/b/never.csv"),
        *(f"a/b/out/{name}" for name in tables),
    }
    with (home / "out" / "ATTRIBUTION.csv").open(newline="", encoding="utf-8") as file:
        output = list(csv.DictReader(file))
    assert {row["title"] for row in output} == set(NAMES)
    assert all("/../" not in row["page"] for row in output)
    assert {clip.uploader for clip in read_manifest(home / "out" / "manifest.jsonl")} == set(NAMES)


def test_sound_whose_audio_differs_from_its_metadata_is_not_fetched(
    crawled: Path, answers: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = [n for n in expected_numbers(answers, [])[0] if answers.corpus.seconds(np.array([n]))[0] == 8][:4]
    gone, longer, larger, fine = (answers.corpus.id(number) for number in numbers)
    write_scores(tmp_path / "scores.csv", [(i, 0.9, "x") for i in (gone, longer, larger, fine)])
    write_list(tmp_path / "never.csv", [1])
    store = tmp_path / "copy.sqlite"
    copy(crawled, store)
    with closing(sqlite3.connect(store)) as database, database:
        database.execute("UPDATE sounds SET gone = 1 WHERE id = ?", (gone,))

    def misstate(database: sqlite3.Connection) -> None:
        database.execute("UPDATE sounds SET duration = 20 WHERE id = ?", (longer,))
        database.execute("UPDATE sounds SET filesize = 7 WHERE id = ?", (larger,))

    with_other_metadata(monkeypatch, misstate)
    with serving("--sounds", str(SOUNDS)) as settings:
        previews = fetch(store, tmp_path / "previews", settings, *UNLIMITED)
        originals = fetch(store, tmp_path / "originals", settings, *UNLIMITED, "--originals")
    assert "1  not fetched: not in the store, or gone from Freesound" in previews.stdout
    assert originals.returncode == 0, originals.stderr
    length = f'{longer},"the audio is 8.00 s long, but Freesound states 20.00 s"\n'
    bytes_came = f'{larger},"the server\'s answer has {44 + 2 * 8 * 44_100} bytes, more than the maximum of 7"\n'
    output = {longer: length, larger: bytes_came}
    for folder, lost in (("previews", [longer]), ("originals", [longer, larger])):
        assert {path.stem for path in (tmp_path / folder).glob("*.flac")} == {
            str(i) for i in (longer, larger, fine) if i not in lost
        }
        lines = (tmp_path / folder / "lost.csv").read_text().splitlines(keepends=True)[1:]
        assert sorted(lines) == sorted(output[i] for i in lost)


@pytest.mark.slow
def test_fetching_originals_needs_a_token_and_counts_against_the_quota(
    crawled: Path, answers: Answers, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    write_scores(tmp_path / "scores.csv", everything(answers))
    write_list(tmp_path / "never.csv", [1])
    store = tmp_path / "copy.sqlite"
    copy(crawled, store)
    with serving("--sounds", str(SOUNDS), "--fault", "truncate=0.07") as settings:
        token = settings.pop("FREESOUND_ACCESS_TOKEN")
        limits = [*UNLIMITED, "--limit", "12", "--originals"]
        process = fetch(store, out, settings, *limits)
        assert "--originals needs an OAuth2 access token; set FREESOUND_ACCESS_TOKEN" in process.stderr
        settings["FREESOUND_ACCESS_TOKEN"] = "wrong"
        process = fetch(store, out, settings, *limits)
        assert "refuses the token" in process.stderr
        settings["FREESOUND_ACCESS_TOKEN"] = token
        with closing(sqlite3.connect(store)) as database:
            before = database.execute("SELECT COUNT(*) FROM requests").fetchone()[0]
        process = fetch(store, out, settings, *limits)
        assert process.returncode == 0, process.stderr
    clips = read_manifest(out / "manifest.jsonl")
    assert len(clips) == 12
    with closing(sqlite3.connect(store)) as database:
        (after,) = database.execute("SELECT COUNT(*) FROM requests").fetchone()
    assert after - before >= 12
    for clip in clips:
        number = answers.corpus.number(int(clip.freesound_id or 0))
        assert number is not None
        original = answers._synthesise(number)
        samples, rate = soundfile.read(clip.path)
        assert rate == 44_100
        assert np.abs(samples - original).max() < 2e-4, "16 bit twice"


def interrupted(crawled: Path, out: Path, settings: dict[str, str], kills: int) -> int:
    """Fetch with this many kills at random moments; returns their number."""
    rng = random.Random(2)
    killed = 0
    while True:
        process = subprocess.Popen(
            command(crawled, out, *FAST, "--rate", "16000"),
            env=os.environ | settings,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            _, errors = process.communicate(timeout=rng.uniform(1.5, 6) if killed < kills else 600)
            assert process.returncode == 0, errors
            return killed
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            killed += 1
            for path in out.glob("*.flac"):
                soundfile.read(path)  # visible files are complete


@pytest.mark.slow
def test_fetch_of_a_thousand_sounds_survives_faults_and_kills(tmp_path: Path) -> None:
    size = 1760
    answers = make_answers(size, 1, 0.0, 0)
    write_scores(tmp_path / "scores.csv", everything(answers))
    excluded = [answers.corpus.id(number) for number in range(0, size, 40)]
    write_list(tmp_path / "never.csv", list(excluded))
    faults = [f"--fault={kind}=0.02" for kind in ("500", "reset", "timeout", "truncate", "429")]
    with serving("--sounds", str(size), "--no-throttle") as settings:
        subprocess.run(
            [sys.executable, "-m", "data_tools", "crawl", str(tmp_path / "store"), *UNLIMITED],
            env=os.environ | settings,
            check=True,
        )
    assert 950 < len(expected_numbers(answers, excluded)[0]) < 1100
    with serving("--sounds", str(size), "--no-throttle", *faults) as settings:
        assert interrupted(tmp_path / "store", tmp_path / "out", settings, 5) == 5
    for path in tmp_path.glob("store*"):
        path.unlink()
    assert_folder(tmp_path / "out", answers, excluded, 16_000)

"""Folders of composed scenes: reproducible files, Clotho's layout, no recording in two splits; and their ceiling."""

import hashlib
import json
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import soundfile
from data_files import failure, wordings

from data_tools.__main__ import main
from data_tools.check import check_clips
from data_tools.datasets.clotho import hold_out
from data_tools.errors import KitError
from data_tools.manifest import read_manifest
from data_tools.scenes.build import Settings, ceiling, plan_split
from data_tools.scenes.captions import SOUNDS, phrasings
from data_tools.scenes.mix import KINDS, SECONDS, Recording, cut, read_recordings
from data_tools.scenes.synth import CLASSES, SAMPLE_RATE
from data_tools.tables import read_table, write_table

N = round(SECONDS * SAMPLE_RATE)


def generator(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file by its path, hidden ones too."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


# Recordings


@pytest.fixture(scope="module")
def esc(tmp_path_factory):
    """ESC-50's published layout at 44.1 kHz: 5 folds of 4 categories, one of them in one fold only."""
    folder = tmp_path_factory.mktemp("esc")
    rows = []
    (folder / "audio").mkdir()
    for fold in "12345":
        for target, category in enumerate(("dog", "rain", "vacuum_cleaner", "cat")):
            for take in "AB":
                name = f"{fold}-{100 + target}-{take}-{target}.wav"
                hz = 300 + 50 * len(rows)
                tone = 0.5 * np.sin(2 * np.pi * hz * np.arange(2 * 44_100) / 44_100)
                silence = np.zeros(44_100 + 22_050 * target)
                soundfile.write(folder / "audio" / name, np.concatenate([silence, tone, silence]), 44_100)
                if category != "cat" or fold == "1":
                    licence = "CC0" if take == "A" else "CC-BY"
                    rows.append((name, fold, target, category, f"author {name}", licence, f"url/{name}"))
    (folder / "meta").mkdir()
    header = ["filename", "fold", "target", "category", "author", "clip_license", "freesound_url"]
    write_table(folder / "meta" / "esc50.csv", header, rows)
    return folder


def recording(path: Path) -> Recording:
    return Recording(path, "", "", "")


def test_parts_of_recordings_have_no_silent_ends_and_contain_loud_sound(esc, tmp_path):
    pool = read_recordings(esc, ["1", "3"])
    assert {name: len(found) for name, found in pool.items()} == {"cat": 2, "dog": 4, "rain": 4, "vacuum_cleaner": 4}
    for found in pool["dog"]:
        whole = cut(found, generator(1), 10 * SAMPLE_RATE)
        assert abs(len(whole) - 2 * SAMPLE_RATE) < 0.03 * SAMPLE_RATE
        assert len(cut(found, generator(1), 8000)) == 8000
        filled = cut(found, generator(1), 5 * SAMPLE_RATE, fill=True)
        assert len(filled) == 5 * SAMPLE_RATE
        assert np.abs(filled[-SAMPLE_RATE // 2 :]).max() > 0.4
    dog = pool["dog"][0]
    assert not np.array_equal(cut(dog, generator(1), 8000), cut(dog, generator(2), 8000))
    soundfile.write(tmp_path / "one.wav", [0.5], SAMPLE_RATE)
    assert len(cut(recording(tmp_path / "one.wav"), generator(1), 100)) == 1
    assert len(cut(recording(tmp_path / "one.wav"), generator(1), 10_000, fill=True)) == 10_000
    bark = 0.5 * np.sin(np.arange(4000))
    soundfile.write(tmp_path / "x.wav", np.concatenate([bark, np.zeros(30_000), bark]), SAMPLE_RATE)
    parts = [cut(recording(tmp_path / "x.wav"), generator(n), 8000) for n in range(100)]
    assert min(np.abs(part).max() for part in parts) > 0.4
    assert len({part.tobytes() for part in parts}) > 50


def test_invalid_recording_folders_are_refused(esc, tmp_path, capsys):
    argv = ("scenes", tmp_path / "out", "--seed", 1, "--recordings")
    assert "not in ESC-50's layout" in failure(capsys, *argv, tmp_path)
    table = tmp_path / "esc10.csv"
    table.write_text("name,fold,category\na.wav,1,dog\n")
    assert "no column filename" in failure(capsys, *argv, tmp_path)
    table.write_text("file_name,fold\na.wav,1\n")
    assert "no column category" in failure(capsys, *argv, tmp_path)
    silent = "file_name,fold,category\n" + "".join(f"{name}.wav,1,{name}\n" for name in "abc")
    table.write_text(silent)
    one = ("--development", 5, "--validation", 0, "--evaluation", 0, "--name", "x")
    assert "no such audio file" in failure(capsys, *argv, tmp_path, *one)
    (tmp_path / "audio").mkdir()
    for name in "abc":
        soundfile.write(tmp_path / "audio" / f"{name}.wav", np.zeros(8000), SAMPLE_RATE)
    argv = ("scenes", tmp_path / "out2", "--seed", 1, "--recordings")
    assert "contains only silence; remove its row" in failure(capsys, *argv, tmp_path, *one)
    table.write_text(silent.replace(",c\n", ",b\n"))
    argv = ("scenes", tmp_path / "out3", "--seed", 1, "--recordings")
    assert "2 categories" in failure(capsys, *argv, tmp_path, *one)


def make(out: Path, *argv: object, counts: tuple[int, int, int] = (10, 5, 5)) -> Path:
    sizes = zip(("--development", "--validation", "--evaluation"), counts, strict=True)
    arguments = ["scenes", out, "--seed", 7, *(part for pair in sizes for part in pair), *argv]
    assert main([str(value) for value in arguments]) == 0
    return out


def test_no_recording_is_used_in_two_splits_of_scenes(esc, tmp_path):
    out = make(tmp_path / "rec", "--recordings", esc, counts=(60, 20, 20))
    folds, licences = defaultdict(set), set()
    for split in ("development", "validation", "evaluation"):
        for _, row in read_table(out / f"clotho_metadata_{split}.csv", []):
            names = row["manufacturer"].split("; ")
            assert len(names) == len(row["keywords"].split(";"))
            assert row["sound_link"] == "; ".join(name.replace("author ", "url/") for name in names)
            folds[split] |= {name.removeprefix("author ")[0] for name in names}
            licences.add(row["license"])
    assert folds == {"development": {"1", "2", "3"}, "validation": {"4"}, "evaluation": {"5"}}
    assert {"CC0", "CC-BY", "CC0; CC-BY", "CC-BY; CC0"} == licences
    clip = read_manifest(out / "manifest.jsonl")[0]
    assert clip.freesound_id is None
    assert clip.uploader.startswith("author ")


def test_scenes_from_esc10_have_its_events_and_licences(shared, tmp_path):
    out = make(tmp_path / "esc", "--recordings", shared / "data" / "esc10")
    clips = read_manifest(out / "manifest.jsonl")
    assert len(clips) == 20
    events = {event for _, row in read_table(out / "labels.csv", []) for event in row["events"].split(";")}
    assert events <= {*SOUNDS}
    assert len(events) == 10
    assert all(clip.licence and clip.licence.startswith("CC") for clip in clips)
    assert not check_clips(clips)
    owners = defaultdict(set)
    for fold in "12345":
        for found in read_recordings(shared / "data" / "esc10", [fold]).values():
            for item in found:
                owners[item.url].add(fold)
    assert all(len(folds) == 1 for folds in owners.values()), "an upload of Freesound is in two folds"


# The folder


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return make(tmp_path_factory.mktemp("made") / "synth", "--heldout-phrasings", "0.2")


def test_scene_folder_has_clothos_layout(scenes, tmp_path):
    clips = read_manifest(scenes / "manifest.jsonl")
    assert Counter(clip.split for clip in clips) == {"development": 10, "validation": 5, "evaluation": 5}
    assert {(clip.source, clip.seconds, len(clip.captions)) for clip in clips} == {("synth", 8.0, 5)}
    assert len({clip.file_name for clip in clips}) == 20
    info = soundfile.info(clips[0].path)
    assert (info.samplerate, info.channels, info.subtype, info.frames) == (16_000, 1, "PCM_16", N)
    labels = [row for _, row in read_table(scenes / "labels.csv", ["file_name", "split", "kind", "events"])]
    assert [row["file_name"] for row in labels] == [clip.file_name for clip in clips]
    assert Counter(row["kind"] for row in labels) == dict.fromkeys(KINDS, 4)
    assert all(len(set(row["events"].split(";"))) == KINDS[row["kind"]] for row in labels)
    for clip, row in zip(clips, labels, strict=True):
        for name in row["events"].split(";"):
            for caption in clip.captions:
                assert any(text in (caption[0].lower() + caption[1:]) for text in wordings(name))
    assert main(["clotho", str(scenes), "--out", str(tmp_path / "m.jsonl")]) == 0
    again = read_manifest(tmp_path / "m.jsonl")
    assert [(clip.path, clip.captions) for clip in again] == [(clip.path, clip.captions) for clip in clips]
    header = (scenes / "clotho_captions_development.csv").read_text()
    assert header.startswith("file_name,caption_1,caption_2,caption_3,")
    assert all(not name.startswith(".") for name in (path.name for path in (scenes / "development").iterdir()))


def test_scene_files_are_reproducible_and_independent_of_other_splits(scenes, tmp_path):
    first = hashes(scenes)
    assert len(first) == 20 + 6 + 3
    assert hashes(make(tmp_path / "synth", "--heldout-phrasings", "0.2")) == first
    more = hashes(make(tmp_path / "x" / "synth", "--captions", "1", counts=(3, 0, 8)))
    assert {name for name in more if name.endswith(".wav") and name in first} == {
        *(f"development/synth_development_0000{n}.wav" for n in (1, 2, 3)),
        *(f"evaluation/synth_evaluation_0000{n}.wav" for n in range(1, 6)),
    }
    assert all(more[name] == first[name] for name in more if name.endswith(".wav") and name in first)
    assert len(set(hashes(scenes).values())) == len(first), "two files are equal"
    other = make(tmp_path / "other" / "synth", "--seed", 8, counts=(3, 0, 0))
    assert not set(hashes(other / "development").values()) & set(first.values())


@pytest.mark.slow
def test_held_out_wordings_are_used_only_in_evaluation(tmp_path):
    out = make(tmp_path / "s", "--heldout-phrasings", "0.2", counts=(60, 30, 60))
    names = {row["file_name"]: row for _, row in read_table(out / "labels.csv", [])}
    unseen = Counter()
    for clip in read_manifest(out / "manifest.jsonl"):
        for caption in clip.captions:
            text = caption[0].lower() + caption[1:]
            for name in names[clip.file_name]["events"].split(";"):
                held = phrasings(name)[-1]
                others = [other for pair in phrasings(name)[:-1] for other in pair]
                unseen[clip.split, held[0] in text or (held[1] in text and not any(o in text for o in others))] += 1
            templates = ("only ", "last of all", "mixed with", "against a backdrop")
            unseen[clip.split, "template"] += any(words in text for words in templates)
    assert unseen["development", True] == unseen["validation", True] == 0
    assert unseen["development", "template"] == unseen["validation", "template"] == 0
    assert 0.12 < unseen["evaluation", True] / (unseen["evaluation", True] + unseen["evaluation", False]) < 0.28
    assert unseen["evaluation", "template"] > 20


def test_captions_of_the_test_split_are_unique_or_refused():
    settings = Settings(name="many", seed=5, counts={"development": 200, "evaluation": 300})
    texts = {split: read_captions(settings, split) for split in settings.counts}
    assert len(texts["evaluation"]) == len(set(texts["evaluation"])) == 1500
    assert len(set(texts["development"])) < len(texts["development"]), "the test has no repeated wording to avoid"
    pool: dict[str, list[Recording]] = {name: [] for name in ("dog", "rain", "siren")}
    with pytest.raises(KitError, match=r"no unused caption is left for a scene of one .*; ask for fewer clips"):
        plan_split(Settings(name="many", seed=5, counts={"evaluation": 2000}), "evaluation", pool)


def read_captions(settings: Settings, split: str) -> list[str]:
    pool: dict[str, list[Recording]] = {name: [] for name in CLASSES}
    return [text for scene in plan_split(settings, split, pool) for text in scene.captions]


@pytest.mark.parametrize("captions", ["1", "noisy"])
def test_scenes_verb_makes_one_caption_per_clip_if_requested(tmp_path, captions):
    out = make(tmp_path / "s", "--captions", captions, counts=(5, 0, 5))
    assert {len(clip.captions) for clip in read_manifest(out / "manifest.jsonl")} == {1}
    assert (out / "clotho_captions_evaluation.csv").read_text().startswith("file_name,caption_1\n")
    assert not (out / "clotho_captions_validation.csv").exists()


def test_scenes_verb_leaves_a_complete_folder_unchanged_and_makes_deleted_scenes_again(tmp_path):
    out = make(tmp_path / "s")
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*.wav")}
    before, deleted = hashes(out), out / "validation/s_validation_00002.wav"
    make(out)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.wav")} == times
    assert hashes(out) == before
    deleted.unlink()
    make(out)
    assert all(path.stat().st_mtime_ns == time for path, time in times.items() if path != deleted)
    assert hashes(out) == before


@pytest.mark.slow
@pytest.mark.parametrize("kind", [[], ["--moments"]])
def test_killed_and_resumed_scenes_verb_writes_the_same_files_as_an_uninterrupted_one(tmp_path, root, kind):
    counts = ["--seed", "7", "--development", "24", "--validation", "2", "--evaluation", "2"]
    out, whole = tmp_path / "cut" / "s", tmp_path / "whole" / "s"
    command = [sys.executable, "-m", "data_tools", "scenes", str(out), *counts, *kind]
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL)
    while len(list(out.glob("development/s_*.wav"))) < 4:
        assert process.poll() is None, "ended before it could be killed"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "manifest.jsonl").exists()
    (out / "development" / ".s_development_00001.wav.9999999.part").write_bytes(b"half")
    for folder in (out, whole):
        assert main(["scenes", str(folder), *counts, *kind]) == 0
    assert (out / "moments.jsonl").exists() == bool(kind)
    assert hashes(out) == hashes(whole)


def test_scenes_verb_refuses_a_folder_made_with_other_arguments(tmp_path, scenes, capsys):
    output = failure(capsys, "scenes", scenes, "--seed", 8, "--development", 10, "--validation", 5, "--evaluation", 5)
    assert "another seed, held_out" in output
    (tmp_path / "notes.txt").write_text("mine")
    assert "contains files but no scenes.json" in failure(capsys, "scenes", tmp_path, "--seed", 1)
    (tmp_path / "scenes.json").write_text("{")
    assert "not JSON" in failure(capsys, "scenes", tmp_path, "--seed", 1)
    (tmp_path / "scenes.json").write_text("[]")
    assert "was made with another name" in failure(capsys, "scenes", tmp_path, "--seed", 1)
    settings = json.loads((scenes / "scenes.json").read_text())
    assert settings["counts"] == {"development": 10, "validation": 5, "evaluation": 5}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--seed", "1", "--development", "0", "--validation", "0", "--evaluation", "0"], "above 0"),
        (["--seed", "1", "--heldout-phrasings", "0.2", "--captions", "noisy"], "--captions noisy"),
        (["--seed", "1", "--name", "a b"], "may only have letters"),
    ],
)
def test_invalid_scene_arguments_are_refused(tmp_path, capsys, argv, message):
    assert message in failure(capsys, "scenes", tmp_path / "out", *argv)
    assert not (tmp_path / "out").exists()


# The ceiling


def labels(folder: Path, rows: list[tuple[str, str]], split: str = "evaluation") -> Path:
    table = [(f"{n}.wav", split, kind, events) for n, (kind, events) in enumerate(rows)]
    write_table(folder / "labels.csv", ["file_name", "split", "kind", "events"], table)
    return folder


def test_mean_average_precision_at_10_of_a_perfect_labeller_matches_hand_values(tmp_path, scenes):
    assert ceiling(labels(tmp_path, [("one", "dog")]), "evaluation") == 1.0
    assert ceiling(labels(tmp_path, [("one", "dog")] * 2), "evaluation") == pytest.approx(0.75)  # rank 1 or 2
    different = [("sequence_2", "a;b"), ("sequence_2", "b;a"), ("overlap", "a;b")]
    different += [("background", "a;b;c"), ("background", "a;c;b")]
    assert ceiling(labels(tmp_path, different), "evaluation") == 1.0
    same = [("overlap", "a;b"), ("overlap", "b;a"), ("one", "a")]
    assert ceiling(labels(tmp_path, same), "evaluation") == pytest.approx((0.75 + 0.75 + 1) / 3)
    harmonic = sum(1 / rank for rank in range(1, 11))
    assert ceiling(labels(tmp_path, [("one", "a")] * 40), "evaluation") == pytest.approx(harmonic / 40)
    with pytest.raises(KitError, match="test"):
        ceiling(scenes, "test")


def test_map_of_a_perfect_labeller_equals_the_mean_over_random_orders_of_tied_clips(tmp_path):
    rng = generator(1)
    rows = [("overlap", ";".join(rng.choice(["a", "b", "c"], 2, replace=False))) for _ in range(40)]
    rows += [("one", "a")] * 15 + [("sequence_2", "a;b"), ("sequence_2", "b;a")]
    keys = [(kind, frozenset(events.split(";")) if kind == "overlap" else events) for kind, events in rows]
    scores = np.array([[float(mine == other) for other in keys] for mine in keys])
    total = []
    for _ in range(400):
        order = np.argsort(-(scores + 0.5 * rng.random(scores.shape)), axis=1)
        ranks = np.argmax(order == np.arange(len(keys))[:, None], axis=1) + 1
        total.append(np.mean(np.where(ranks <= 10, 1 / ranks, 0)))
    assert ceiling(labels(tmp_path, rows), "evaluation") == pytest.approx(np.mean(total), abs=0.01)


TEXTS = "1ce594d3c3a90590"
LEVELS = [
    0.014054, 0.026265, 0.025379, 0.042047, 0.029723, 0.017581, 0.044261, 0.018365, 0.02958,
    0.007668, 0.065645, 0.075064,
]  # fmt: skip
HOLDOUT = {
    "development": (3071, "db23eee65a615b21"),
    "validation": (768, "aba5568ad1c6bfe8"),
    "evaluation": (1045, "62c09804d90b92bc"),
}


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def test_scenes_of_real_recordings_stay_as_they_are(shared, tmp_path):
    out = tmp_path / "scenes"
    counts = ["--development", "6", "--validation", "3", "--evaluation", "3"]
    assert main(["scenes", str(out), "--seed", "7", "--recordings", str(shared / "data/esc10"), *counts]) == 0
    texts = "".join((out / name).read_text() for name in sorted(path.name for path in out.glob("*.csv")))
    found = [
        np.sqrt(np.mean(np.square(soundfile.read(clip.path)[0]))) for clip in read_manifest(out / "manifest.jsonl")
    ]
    assert digest(texts) == TEXTS
    assert found == pytest.approx(LEVELS, rel=1e-4)


def test_holdout_of_clotho_as_in_2022_stays_as_it_is(clotho_manifest):
    clips = [clip for clip in read_manifest(clotho_manifest) if clip.split != "validation"]
    names: dict[str, list[str]] = {}
    for clip in hold_out(clips, 0.2, 1):
        names.setdefault(clip.split, []).append(clip.file_name)
    assert {split: (len(found), digest("\n".join(sorted(found)))) for split, found in names.items()} == HOLDOUT

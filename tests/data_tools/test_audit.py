"""`audit`: overlaps of training data with test splits and exclusion lists, on hand-made and real sets."""

import json
import shutil
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import soundfile
from data_files import failure, publish_clotho, rows
from sounds import RATE, Wave, everyday, tone, with_noise
from sounds import noise as invented_noise

from data_tools.__main__ import main
from data_tools.leakage.audit import Overlap, audit
from data_tools.leakage.exclusion import read_exclusions
from data_tools.manifest import Clip, Split, write_manifest
from data_tools.moments import Moment, write_moments

LISTS = (
    "dcase2025/dcase2025_task6_excluded_freesound_ids.csv",
    "exclusion/blacklist_clotho.full.v2.csv",
    "exclusion/blacklist_exclude_test_ac.json",
)


def clip(
    name: str,
    split: Split,
    freesound_id: str | None = None,
    caption: str | None = None,
    source: str = "x",
    path: str | None = None,
) -> Clip:
    return Clip(
        id=f"{source}/{split}/{name}",
        file_name=name,
        path=path or name,
        seconds=None,
        captions=[caption or f"{source} {split} {name}"],
        source=source,
        split=split,
        freesound_id=freesound_id,
        licence=None,
        uploader=None,
    )


def brief(overlaps: list[Overlap]) -> list[tuple[str, str, str, str, bool]]:
    return [(overlap.finding, overlap.clip.id, overlap.other, overlap.evidence, overlap.leak) for overlap in overlaps]


def test_audit_finds_every_kind_of_overlap_planted_in_hand_made_clips(tmp_path: Path) -> None:
    (tmp_path / "never.csv").write_text("sound_id\n1\n3\nNot found\n")
    clips = [
        clip("e1.wav", "evaluation", "007"),
        clip("same.wav", "evaluation", "8"),
        clip("v1.wav", "validation", "3"),
        clip("v2.wav", "validation", "7", "a dog"),
        clip("d1.wav", "development", "7"),
        clip("d2.wav", "development", "01", "a dog"),
        clip("same.wav", "development"),
        clip("d3.wav", "development", "9", "a cat"),
        clip("d4.wav", "development", "9", "a cat"),
    ]
    identity = "same Freesound id across splits"
    assert brief(audit(clips, [], read_exclusions([tmp_path / "never.csv"]))) == [
        ("Freesound id on an exclusion list", "x/development/d2.wav", "1", "Freesound id 01", True),
        (identity, "x/development/d1.wav", "x/validation/v2.wav", "7", False),
        (identity, "x/development/d1.wav", "x/evaluation/e1.wav", "7", True),
        (identity, "x/validation/v2.wav", "x/evaluation/e1.wav", "7", False),
        ("same file name across splits", "x/development/same.wav", "x/evaluation/same.wav", "same.wav", True),
        ("same caption across splits", "x/development/d2.wav", "x/validation/v2.wav", "a dog", False),
    ]


def test_audit_reports_no_overlap_between_two_manifests_that_are_both_named_with_against() -> None:
    known = [clip("a.wav", "development", "1"), clip("b.wav", "evaluation", "1"), clip("c.wav", "evaluation", "1")]
    new = [clip("d.wav", "train", "1", source="y"), clip("e.wav", "train", "2", source="y")]
    kind = "same Freesound id across splits"
    assert audit(new[1:], known) == []
    assert brief(audit(new, known)) == [
        (kind, "y/train/d.wav", "x/development/a.wav", "1", False),
        (kind, "y/train/d.wav", "x/evaluation/b.wav", "1 (2 clips)", True),
    ]
    assert len(audit([*new, *known], [])) == 3
    assert audit([*new, *known], known) == audit([*new, *known, *new], []) == audit([*new, *known], [])
    assert audit([clip("a.wav", "train", "1"), clip("a.wav", "train", "1")], []) == []


def test_shared_captions_are_listed_without_failing_the_audit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_manifest(tmp_path / "m.jsonl", [clip("a.wav", "train", "1", "a dog"), clip("b.wav", "test", "2", "a dog")])
    assert main(["audit", str(tmp_path / "m.jsonl")]) == 0
    printed = capsys.readouterr().out
    assert "      1  same caption across splits\n             1  x/train overlaps x/test\n" in printed
    assert (
        "none of 1 training clips is on an exclusion list or shares a Freesound id, YouTube id or file name with a"
        in printed
    )


# Sound


def noise(seed: int) -> Wave:
    return invented_noise(seed, 3.0)


@pytest.fixture
def sounds(tmp_path: Path) -> Path:
    """A development and an evaluation manifest: d0 is e0 as a quieter MP3 without its first half second."""
    for name, wave in {
        "d0.mp3": noise(0)[8_000:] / 2,
        "d1.wav": noise(1),
        "d2.wav": noise(2),
        "e0.wav": noise(0),
        "e1.wav": noise(3),
        "quiet.wav": np.zeros(48_000, np.float32),
    }.items():
        soundfile.write(tmp_path / name, wave, 16_000)
    (tmp_path / "broken.wav").write_text("<html>")
    shutil.copy(tmp_path / "d2.wav", tmp_path / "again.wav")
    names = ("d0.mp3", "d1.wav", "d2.wav", "quiet.wav", "gone.wav")
    write_manifest(tmp_path / "d.jsonl", [clip(name, "development", path=str(tmp_path / name)) for name in names])
    names = ("e0.wav", "e1.wav", "broken.wav")
    write_manifest(tmp_path / "e.jsonl", [clip(name, "evaluation", path=str(tmp_path / name)) for name in names])
    again = clip("again.wav", "train", source="y", path=str(tmp_path / "again.wav"))
    write_manifest(tmp_path / "y.jsonl", [again])
    return tmp_path


def test_audit_does_not_depend_on_manifest_order(sounds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("d", "e", "y")
    for order in (names, names[::-1]):
        argv = ["audit", *(str(sounds / f"{name}.jsonl") for name in order), "--audio"]
        assert main([*argv, "--list", str(sounds / "f.csv")]) == 1
        pairs = {(row["clip"], row["other"]) for row in rows(sounds / "f.csv")}
        assert ("x/development/d0.mp3", "x/evaluation/e0.wav") in pairs
        assert "+0.50 s later" in capsys.readouterr().out


def test_split_whose_clips_are_in_two_manifests_is_audited_as_one_split(
    sounds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clips = [clip("more.wav", "development", path=str(sounds / "d1.wav")), clip("e9.wav", "evaluation", path="gone")]
    write_manifest(sounds / "more.jsonl", clips)
    argv = ["audit", str(sounds / "d.jsonl"), "--against", str(sounds / "more.jsonl"), "--audio"]
    assert main(argv) == 0
    assert "      0  near-duplicate audio across splits" in capsys.readouterr().out


# The verdict on sound: of the clips that may be spoken of, and of no other


def verdict(folder: Path, capsys: pytest.CaptureFixture[str], **splits: dict[str, Wave | None]) -> tuple[str, str, int]:
    """Return (printed text, its last line, exit status) of an audit of sounds by split and name; None: no file."""
    clips = []
    for split, waves in splits.items():
        for name, wave in waves.items():
            if wave is not None:
                soundfile.write(folder / name, wave, RATE)
            clips.append(clip(name, cast(Split, split), path=str(folder / name)))
    write_manifest(folder / "m.jsonl", clips)
    status = main(["audit", str(folder / "m.jsonl"), "--audio", "--list", str(folder / "f.csv")])
    printed = capsys.readouterr().out
    return printed, printed.splitlines()[-1], status


UNSURE_TEXT = "shared sounds are not known, because the clips named above cannot be compared reliably"
APART = (
    "none of {} training clips is on an exclusion list or shares a Freesound id, YouTube id or file name "
    "with a test split; "
)


def test_audit_verdict_says_no_sound_is_shared_if_all_fingerprints_are_reliable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed, last, status = verdict(
        tmp_path, capsys, train={"a.wav": noise(0), "b.wav": noise(1)}, test={"c.wav": noise(2)}
    )
    assert status == 0
    assert last == (
        "none of 2 training clips is on an exclusion list or shares a Freesound id, YouTube id, file name or sound "
        "with a test split"
    )
    assert "      3  clips whose sound was compared\n      0  Freesound id" in printed  # and no other is named


def test_audit_compares_clips_with_a_test_split_in_a_manifest_named_with_against(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, split in (("a.wav", "train"), ("b.wav", "test")):
        soundfile.write(tmp_path / name, noise(ord(name[0])), RATE)
        write_manifest(tmp_path / f"{split}.jsonl", [clip(name, cast(Split, split), path=str(tmp_path / name))])
    argv = ["audit", str(tmp_path / "train.jsonl"), "--against", str(tmp_path / "test.jsonl"), "--audio"]
    assert main(argv) == 0
    assert capsys.readouterr().out.endswith("shares a Freesound id, YouTube id, file name or sound with a test split\n")


@pytest.mark.parametrize(
    ("train", "test", "output"),
    [
        (everyday("alarm", 0), noise(2), UNSURE_TEXT),
        (noise(2), tone(440), UNSURE_TEXT),
        (tone(440)[:800], tone(440)[:800], "their sound was not compared"),
        (None, None, "their sound was not compared"),
    ],
    ids=["unsure", "one side", "neither", "no files"],
)
def test_audit_verdict_leaves_shared_sound_undecided_without_reliable_fingerprints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], train: Wave | None, test: Wave | None, output: str
) -> None:
    printed, last, status = verdict(tmp_path, capsys, train={"a.wav": train}, test={"b.wav": test})
    assert status == 0
    assert last == APART.format(1) + output
    assert ("      -  near-duplicate audio across splits" in printed) == (output == "their sound was not compared")


def test_audit_verdict_makes_no_claim_without_a_test_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    soundfile.write(tmp_path / "a.wav", noise(0), RATE)
    write_manifest(tmp_path / "m.jsonl", [clip("a.wav", "train", "1", path=str(tmp_path / "a.wav"))])
    (tmp_path / "never.csv").write_text("sound_id\n2\n")
    assert main(["audit", str(tmp_path / "m.jsonl"), "--audio", "--exclude", str(tmp_path / "never.csv")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == APART.format(1) + "their sound was not compared"


def test_audit_prints_ten_names_per_finding_and_writes_all_to_a_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = {f"{n}.wav": None for n in range(12)}
    printed, _, _ = verdict(tmp_path, capsys, train=train, test={"b.wav": noise(0)})
    assert "12  clips without readable audio: x/train/0.wav (" in printed
    assert "x/train/9.wav (" in printed
    assert "; and 2 more (--list FILE.csv writes all of them)\n" in printed
    assert "x/train/10.wav" not in printed
    assert len(rows(tmp_path / "f.csv")) == 12


def test_audit_with_audio_fails_for_noisy_copies_of_test_clips(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = {"a.wav": with_noise(everyday("birds", 0), 10, 5)[5_000:], "b.wav": everyday("birds", 1)}
    printed, last, status = verdict(tmp_path, capsys, train=train, test={"c.wav": everyday("birds", 0)})
    assert status == 1
    assert "x/train/a.wav | x/test/c.wav: " in printed
    assert last.startswith(
        "training data overlaps test splits or exclusion lists: remove 1 clip from the training data (near-duplicate"
    )


def test_audit_verdict_makes_no_claim_about_clips_with_missing_audio(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_manifest(tmp_path / "m.jsonl", [clip("a.wav", "train"), clip("b.wav", "test")])
    assert main(["audit", str(tmp_path / "m.jsonl"), "--audio"]) == 0
    printed = capsys.readouterr().out
    assert "2  clips without readable audio: " in printed
    assert "      -  near-duplicate audio across splits" in printed
    assert "shares a Freesound id, YouTube id or file name with a test split; their sound was not compared" in printed


def test_audit_without_audio_option_says_audio_was_not_compared(
    sounds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(sounds / "d.jsonl"), str(sounds / "e.jsonl")]) == 0
    printed = capsys.readouterr().out
    assert "audio was not compared; add --audio to compare it" in printed
    assert "      -  near-duplicate audio across splits" in printed


# Real sets


@pytest.fixture(scope="module")
def clotho(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    (folder / "clotho").mkdir()
    publish_clotho(shared, folder / "clotho")
    assert main(["clotho", str(folder / "clotho"), "--out", str(folder / "clotho.jsonl")]) == 0
    return folder / "clotho.jsonl"


def test_audit_finds_five_freesound_ids_and_four_file_names_shared_by_splits_of_clotho(
    clotho: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(clotho), "--list", str(clotho.with_suffix(".csv"))]) == 1
    printed = capsys.readouterr().out
    listed = rows(clotho.with_suffix(".csv"))

    def shared_by(kind: str) -> set[tuple[str, str, str]]:
        found = [row for row in listed if row["finding"] == kind]
        return {(row["evidence"], row["clip"].split("/")[1], row["other_split"].split("/")[1]) for row in found}

    assert shared_by("same Freesound id across splits") == {
        ("86163", "development", "validation"),
        ("130603", "development", "validation"),
        ("137692", "development", "evaluation"),
        ("66304", "validation", "evaluation"),
        ("86161", "validation", "evaluation"),
    }
    names = shared_by("same file name across splits")
    assert len(names) == 4
    assert ("FREEZER_DOOR_OPEN_CLOSE.wav", "development", "evaluation") in names
    assert "      5  same Freesound id across splits" in printed
    assert "      4  same file name across splits" in printed
    assert "8  training clips without a Freesound id" in printed
    assert (
        "remove 1 clip from the training data (same Freesound id across splits; same file name across splits)"
        in printed
    )


def test_official_exclusion_list_forbids_three_clotho_development_clips(
    shared: Path, clotho: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(clotho), "--exclude", str(shared / "data" / LISTS[0])]) == 1
    printed = capsys.readouterr().out
    assert "3079  Freesound ids on dcase2025_task6_excluded_freesound_ids.csv, and 1 entries without an id" in printed
    assert "      3  Freesound id on an exclusion list" in printed
    assert "remove 3 clips from the training data" in printed


def test_audit_lists_every_excluded_esc10_recording(
    shared: Path, clotho: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = rows(shared / "data/esc10/esc10.csv")
    clips = [clip(row["file_name"], "train", row["freesound_id"], row["category"], "esc10") for row in table]
    write_manifest(tmp_path / "esc10.jsonl", clips)
    argv = ["audit", str(tmp_path / "esc10.jsonl"), "--against", str(clotho), "--list", str(tmp_path / "f.csv")]
    for names, counts in ((LISTS[:1], (20,)), (LISTS, (20, 60, 21))):
        assert main([*argv, "--exclude", *(str(shared / "data" / name) for name in names)]) == 1
        capsys.readouterr()
        named: dict[str, set[str]] = {Path(name).name: set() for name in names}
        for row in rows(tmp_path / "f.csv"):
            if row["finding"] == "Freesound id on an exclusion list":
                named[row["other_split"]].add(row["clip"])
        assert tuple(map(len, named.values())) == counts
        for name, ids in named.items():
            text = (shared / "data" / next(one for one in LISTS if one.endswith(name))).read_text()
            numbers = {line.split(",")[-1] for line in text.splitlines()} | set(text.split('"'))
            listed = {row["file_name"] for row in table if row["freesound_id"] in numbers}
            assert {one.split("/")[-1] for one in ids} == listed
    free = [one for one in clips if f"esc10/train/{one.file_name}" not in set().union(*named.values())]
    write_manifest(tmp_path / "free.jsonl", free)
    argv = ["audit", str(tmp_path / "free.jsonl"), "--against", str(clotho), "--exclude"]
    assert main([*argv, *(str(shared / "data" / name) for name in LISTS)]) == 0
    assert f"none of {len(free)} training clips is on an exclusion list" in capsys.readouterr().out


# Wrong use


def test_audit_without_training_or_test_clips_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_manifest(tmp_path / "train.jsonl", [clip("a.wav", "train", "1")])
    write_manifest(tmp_path / "test.jsonl", [clip("b.wav", "test", "2")])
    assert "has no clip of a training split" in failure(capsys, "audit", tmp_path / "test.jsonl")
    assert "nothing to compare with: no clip of a test split" in failure(capsys, "audit", tmp_path / "train.jsonl")
    assert main(["audit", str(tmp_path / "train.jsonl"), "--against", str(tmp_path / "test.jsonl")]) == 0
    (tmp_path / "never.csv").write_text("sound_id\nx\n")
    output = failure(capsys, "audit", tmp_path / "train.jsonl", "--exclude", tmp_path / "never.csv")
    assert "never.csv, line 2: the id 'x' is neither digits" in output
    assert main(["audit"]) == main(["audit", str(tmp_path / "train.jsonl"), "--nonsense"]) == 2


def test_audit_finds_test_captions_among_the_moment_queries_of_mixed_recordings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The queries of Clotho-Moment are captions of Clotho: the recording is listed with the clip it was mixed from."""
    mixed = [clip(name, "train", source="mixed") for name in ("a.wav", "b.wav")]
    test = clip("rain.wav", "test", caption="Rain falls", source="clotho")
    write_manifest(tmp_path / "mixed.jsonl", mixed)
    write_manifest(tmp_path / "clotho.jsonl", [test])
    asked = [Moment(id="1", text="Rain falls", clip=mixed[1].id, windows=[(1.0, 4.0)])]
    write_moments(tmp_path / "moments.jsonl", asked)
    named = ["audit", str(tmp_path / "mixed.jsonl"), "--against", str(tmp_path / "clotho.jsonl"), "--json"]
    assert main(named) == 0
    assert json.loads(capsys.readouterr().out)["overlaps"] == []
    assert main([*named, "--moments", str(tmp_path / "moments.jsonl")]) == 0
    (overlap,) = json.loads(capsys.readouterr().out)["overlaps"]
    assert (overlap["finding"], overlap["clip"], overlap["other"]) == (
        "same caption across splits",
        "mixed/train/b.wav",
        "clotho/test/rain.wav",
    )
    write_moments(tmp_path / "moments.jsonl", [asked[0].model_copy(update={"clip": "none"})])
    assert main([*named, "--moments", str(tmp_path / "moments.jsonl")]) == 1
    assert "moments.jsonl, line 1: no given manifest has the clip none; add its manifest" in capsys.readouterr().err

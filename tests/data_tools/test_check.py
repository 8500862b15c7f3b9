"""`check` separates every kind of finding; the command line helps, and reports every error in one line."""

import json
from pathlib import Path

import numpy as np
import pytest
from data_files import failure, findings, small_clotho, write_rows, write_wav

from data_tools.__main__ import VERBS, main
from data_tools.manifest import Clip, read_manifest, write_manifest


def test_check_finds_every_kind_of_planted_fault(tmp_path: Path) -> None:
    for split, count in (("development", 5), ("evaluation", 3)):
        captions = [[f"{split[0]}{n}.wav", "a dog" if n == 0 else f"{split} {n}"] for n in range(count)]
        write_rows(tmp_path / f"clotho_captions_{split}.csv", ["file_name", "caption_1"], captions)
        for n in range(count):
            write_wav(tmp_path / split / f"{split[0]}{n}.wav", n if split == "development" else 100 + n)
    write_wav(tmp_path / "development" / "d2.wav", 1)  # as d1.wav
    write_wav(tmp_path / "evaluation" / "e2.wav", 4)  # as d4.wav
    manifest = tmp_path / "m.jsonl"
    assert main(["clotho", str(tmp_path), "--out", str(manifest), "--splits", "development", "evaluation"]) == 0
    lines = manifest.read_text().splitlines()
    silent = json.loads(lines[3]) | {"captions": []}
    manifest.write_text("\n".join([*lines[:3], json.dumps(silent), *lines[4:]]) + "\n")
    found = {kind: sorted(map(sorted, groups.values())) for kind, groups in findings(manifest).items()}
    dev, evaluation = "clotho/development/d", "clotho/evaluation/e"
    assert found == {
        "missing audio files": [],
        "corrupt audio files": [],
        "audio without sound": [],
        "duplicate ids": [],
        "same audio content inside a split": [[f"{dev}1.wav", f"{dev}2.wav"]],
        "same audio content across splits": [[f"{dev}4.wav", f"{evaluation}2.wav"]],
        "same Freesound id across splits": [],
        "same file name across splits": [],
        "captions shared by different clips": [[f"{dev}0.wav", f"{evaluation}0.wav"]],
        "clips without captions": [[f"{dev}3.wav"]],
    }


def test_check_prints_its_verdict_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = small_clotho(tmp_path, ["a.wav", "b.wav"], ["a.wav", "b.wav"])
    check = ["check", str(root / "m.jsonl")]
    assert main(["clotho", str(root), "--out", str(root / "m.jsonl"), "--splits", "development"]) == 0
    assert main(check) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nothing to fix"
    (root / "development/b.wav").write_bytes((root / "development/a.wav").read_bytes())
    assert main(check) == 0
    judged = "for you to judge, because published data may have such findings: same audio content inside a split (1)"
    assert capsys.readouterr().out.splitlines()[-1] == f"nothing to fix; {judged}"
    (root / "development/a.wav").unlink()
    assert main([*check, "--quick"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "1 problem to fix: missing audio files (1)"


def test_freesound_ids_are_compared_as_numbers(tmp_path: Path) -> None:
    manifest = tmp_path / "m.jsonl"
    ids = {"development": "0123", "validation": " 123 ", "evaluation": "1230", "train": None}
    for split in ids:
        write_wav(tmp_path / f"{split}.wav", len(split))
    clips = [
        Clip(id=f"s/{split}/a.wav", file_name=f"{split}.wav", path=f"{split}.wav", seconds=None, captions=[split],
             source="s", split=split, freesound_id=number, licence=None, uploader=None)  # type: ignore[arg-type]
        for split, number in ids.items()
    ]  # fmt: skip
    write_manifest(manifest, clips)
    assert [clip.freesound_id for clip in read_manifest(manifest)] == list(ids.values()), "as published"
    found = findings(manifest)["same Freesound id across splits"]
    assert list(found.values()) == [["s/development/a.wav", "s/validation/a.wav"]]


def test_duplicate_ids_are_found_in_one_or_two_manifests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = small_clotho(tmp_path, ["a.wav", "b.wav"], ["a.wav", "b.wav"])
    manifest = root / "m.jsonl"
    assert main(["clotho", str(root), "--out", str(manifest), "--splits", "development"]) == 0
    assert main(["check", str(manifest)]) == 0
    assert main(["check", str(manifest), str(manifest)]) == 1
    printed = capsys.readouterr().out
    assert "      2  duplicate ids" in printed
    assert printed.count("      0  captions shared by different clips") == 2
    manifest.write_text(manifest.read_text() * 2)
    assert main(["check", "--quick", str(manifest)]) == 1
    assert "already on line 1" in failure(capsys, "queries", manifest, "--out", tmp_path / "q.jsonl")


def test_check_prints_at_most_ten_names_per_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = small_clotho(tmp_path, [f"{n}.wav" for n in range(23)], [])
    argv = ["clotho", str(root), "--out", str(root / "m.jsonl"), "--splits", "development", "--keep-missing"]
    assert main(argv) == 0
    assert main(["check", str(root / "m.jsonl")]) == 1
    printed = capsys.readouterr()
    assert printed.out.count("clotho/development/") == 10
    assert "and 13 more" in printed.out
    assert printed.err == ""  # no progress bar where nobody watches


# The door


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_help_of_every_verb_shows_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    printed = capsys.readouterr().out
    assert f"example:\n  lbar data {verb} " in printed


def test_operating_system_errors_are_printed_on_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = small_clotho(tmp_path, ["a.wav"], ["a.wav"])
    argv = ("clotho", root, "--splits", "development", "--out")
    listed = ("check", tmp_path / "folder")
    (tmp_path / "folder").mkdir()
    assert failure(capsys, *listed) == f"error: {tmp_path / 'folder'}: is a folder; name a file\n"
    output = failure(capsys, *argv, tmp_path / "clotho_captions_development.csv" / "m.jsonl")
    assert str(tmp_path / "clotho_captions_development.csv") in output


def test_interrupted_verb_prints_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(folder: Path) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr("data_tools.datasets.blind.audio_tree", interrupted)
    assert main(["blind", str(tmp_path), "--out", str(tmp_path / "b.jsonl")]) == 130
    assert capsys.readouterr().err == "interrupted; nothing was written\n"


RATE = 16_000
TONE = (0.3 * np.sin(2 * np.pi * 440 * np.arange(2 * RATE) / RATE)).astype(np.float32)
NOISE = np.random.default_rng(0).uniform(-1, 1, 2 * RATE).astype(np.float32)
CANCEL, SHORT = "channels cancel each other when they are mixed to mono", "too short (0.0625 ms)"
WITHOUT_SOUND = {
    "antiphase": (np.stack([TONE, -TONE], 1), "FLOAT", CANCEL),
    "almost antiphase": (np.stack([TONE, -0.99 * TONE], 1), "PCM_16", CANCEL),
    "digital silence": (0 * TONE, "PCM_16", "silent"),
    "silence of four channels": (np.zeros((2 * RATE, 4)), "PCM_24", "silent"),
    "less than a step of 16 bits": (NOISE * 0.9 / 2**15, "FLOAT", "silent"),
    "silence with dither": (np.rint(NOISE * 0.99) / 2**15, "PCM_16", "silent"),
    "a constant": (np.full(2 * RATE, 0.5, np.float32), "FLOAT", "one constant value"),
    "a constant with tiny noise": (0.5 + NOISE / 2**15, "FLOAT", "one constant value"),
    "one sample": (TONE[1:2], "PCM_16", SHORT),
    "9 ms": (TONE[: int(0.009 * RATE)], "PCM_16", "too short (9 ms)"),
}
WITH_SOUND = {
    "a tone": TONE,
    "10 ms": TONE[: int(0.01 * RATE)],
    "a tone at -80 dB": TONE / 0.3 * 1e-4,
    "a tone next to a constant": TONE + 0.5,
    "half of antiphase": np.stack([TONE, -0.5 * TONE], 1),
    "one loud channel": np.stack([TONE, 0 * TONE], 1),
    "a click in silence": np.concatenate([0 * TONE, [0.5], 0 * TONE]),
}

"""What composed data sets hold, as checksums of their texts and loudness of their sounds."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import soundfile

from data_tools.__main__ import main
from data_tools.datasets.clotho import hold_out
from data_tools.manifest import read_manifest

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


def test_scenes_of_real_recordings_stay_as_they_are(shared: Path, tmp_path: Path) -> None:
    out = tmp_path / "scenes"
    counts = ["--development", "6", "--validation", "3", "--evaluation", "3"]
    assert main(["scenes", str(out), "--seed", "7", "--recordings", str(shared / "data/esc10"), *counts]) == 0
    texts = "".join((out / name).read_text() for name in sorted(path.name for path in out.glob("*.csv")))
    found = [
        np.sqrt(np.mean(np.square(soundfile.read(clip.path)[0]))) for clip in read_manifest(out / "manifest.jsonl")
    ]
    assert digest(texts) == TEXTS
    assert found == pytest.approx(LEVELS, rel=1e-4)


def test_holdout_of_clotho_as_in_2022_stays_as_it_is(clotho_manifest: Path) -> None:
    clips = [clip for clip in read_manifest(clotho_manifest) if clip.split != "validation"]
    names: dict[str, list[str]] = {}
    for clip in hold_out(clips, 0.2, 1):
        names.setdefault(clip.split, []).append(clip.file_name)
    assert {split: (len(found), digest("\n".join(sorted(found)))) for split, found in names.items()} == HOLDOUT

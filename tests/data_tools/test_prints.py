"""Fingerprints of many recordings: stored on disk, and compared in portions."""

import errno
import tempfile
from typing import Any

import numpy as np
import pytest

from data_tools.leakage import fingerprint as module
from data_tools.leakage.audit import audit
from data_tools.leakage.fingerprint import Fingerprint, near_duplicates
from data_tools.leakage.prints import StoredPrints
from data_tools.manifest import Clip


def invented(seed: int, seconds: float = 8.0, noise_score: float = 50.0) -> Fingerprint:
    draws = np.random.default_rng(seed)
    frames = np.sort(draws.integers(0, int(50 * seconds), int(45 * seconds)))
    bins = draws.integers(module.LOWEST, module.HIGHEST, len(frames))
    frames, bins = np.unique([frames, bins], axis=1)
    outstanding = ((bins * 7919 + frames * 104_729) % 1009).astype(float)
    found = module._from_peaks(frames, bins, 1 + outstanding, outstanding)
    return Fingerprint(found.frames, found.bins, found.levels, found.codes, found.counts, noise_score)


def test_stored_fingerprints_are_read_unchanged() -> None:
    stored, made = StoredPrints(), {f"c{n}": invented(n, 1 + n) for n in range(5)}
    for clip_id, one in made.items():
        stored.store(clip_id, one)
    stored.store("quiet", invented(9, 2, noise_score=module.SURE_SCORE - 1))
    assert len(stored) == 6
    assert "c3" in stored
    assert "c9" not in stored
    assert stored.unsure == ["quiet"]
    for clip_id in reversed(made):
        for field in ("frames", "bins", "levels", "codes", "counts"):
            found, expected = getattr(stored[clip_id], field), getattr(made[clip_id], field)
            assert found.dtype == expected.dtype
            assert np.array_equal(found, expected)
        assert stored[clip_id].noise_score == 50
    some = stored.of(["c4", "c1"])
    assert [len(one.codes) for one in some] == [len(made["c4"].codes), len(made["c1"].codes)]
    assert len(some[1:]) == 1


@pytest.mark.parametrize("pairs", [1, 5000, 1 << 24])
def test_fingerprint_matches_do_not_depend_on_the_number_compared_at_once(
    pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = [invented(n) for n in range(6)], [invented(n, 9) for n in range(100, 112)]
    many[3], many[10], many[11] = few[5], few[0], few[5]
    whole = near_duplicates(few, many)
    assert [(match.first, match.second) for match in whole] == [(0, 10), (5, 3), (5, 11)]
    monkeypatch.setattr(module, "MAX_PAIRS", pairs)
    stored = StoredPrints()
    for number, one in enumerate(few):
        stored.store(str(number), one)
    assert near_duplicates(stored.of([str(number) for number in range(6)]), many) == whole
    assert near_duplicates(few, many) == whole
    back = sorted((match.second, match.first) for match in near_duplicates(many, few))
    assert back == [(0, 10), (5, 3), (5, 11)]


def test_full_disk_error_names_the_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = StoredPrints()

    class Full:
        def seek(self, *_: Any) -> None: ...

        def write(self, _: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(stored, "_file", Full())
    with pytest.raises(OSError, match="No space left on device") as caught:
        stored.store("c", invented(1))
    assert caught.value.filename == tempfile.gettempdir()
    assert "c" not in stored


def clip(split: str, number: int, caption: str) -> Clip:
    name = f"{number}.wav"
    return Clip(
        id=f"s/{split}/{name}", file_name=f"{split}{name}", path=name, captions=[caption], source="s", split=split
    )  # type: ignore[arg-type]


def test_captions_shared_between_splits_are_found_in_hand_made_data() -> None:
    """Two audited clips, and two that are only compared with them, which are not listed with each other."""
    audited = [clip("development", 1, "music"), clip("development", 2, "music")]
    against = [clip("evaluation", 3, "music"), clip("evaluation", 4, "music"), clip("validation", 5, "music")]
    found = [(one.clip.id, one.other, one.evidence) for one in audit(audited, against)]
    assert sorted(found) == [
        ("s/development/1.wav", "s/evaluation/3.wav", "music (2 clips)"),
        ("s/development/1.wav", "s/validation/5.wav", "music"),
        ("s/development/2.wav", "s/evaluation/3.wav", "music (2 clips)"),
        ("s/development/2.wav", "s/validation/5.wav", "music"),
    ]
    third = [clip("validation", 6, "music")]  # audited, next to validation/5, which is not
    found = [(one.clip.id, one.other) for one in audit(third, against)]
    assert sorted(found) == [("s/validation/6.wav", "s/evaluation/3.wav")]

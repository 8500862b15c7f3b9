"""Labelled recordings in ESC-50's layout, cut into events.

Piczak, "ESC: Dataset for Environmental Sound Classification", ACM Multimedia 2015; https://github.com/karolpiczak/ESC-50
ESC-50 is CC BY-NC, its part ESC-10 is CC BY; every clip comes from Freesound.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_tools.audio import read_audio
from data_tools.errors import AudioError, DataError
from data_tools.scenes.synth import SAMPLE_RATE, Rng, Samples
from data_tools.tables import read_table

# Relative to the loudest frame of a recording: quieter ends are cut off; a part has a frame louder than this.
SILENCE_DB, LOUD_DB = -40.0, -20.0
_FRAME = SAMPLE_RATE // 100


class Recording(NamedTuple):
    """A row of the table. author, licence and url (its Freesound page) are "" if the table does not have them."""

    path: Path
    category: str
    fold: str
    author: str
    licence: str
    url: str


Pool = Mapping[str, Sequence[Recording]]  # recordings by class; a class without any is synthesised


def draw_recording(rng: Rng, pool: Pool, name: str) -> Recording | None:
    """Draw one of the recordings of a class, all equally likely; None if the class is synthesised."""
    return pool[name][int(rng.integers(len(pool[name])))] if pool[name] else None


def table_path(folder: Path) -> Path:
    """Return the path of the table of a folder in ESC-50's layout. Raises DataError if it is missing."""
    for path in (folder / "meta" / "esc50.csv", folder / "esc50.csv", folder / "esc10.csv"):
        if path.is_file():
            return path
    raise DataError(f"{folder}: not in ESC-50's layout, which needs meta/esc50.csv (or esc10.csv) and audio/")


def read_recordings(folder: Path, folds: Iterable[str]) -> dict[str, list[Recording]]:
    """Return a dict from sound category to its recordings in the given folds; categories and recordings are sorted.

    The table has filename or file_name, fold and category; author, clip_license and freesound_url are optional.
    Raises DataError for a missing table or file, wrong columns, and a fold without recordings.
    """
    path = table_path(folder)
    rows = read_table(path, ["fold", "category"])
    column = "filename" if "filename" in rows[0][1] else "file_name"
    if column not in rows[0][1]:
        raise DataError(f"{path}: no column filename, only {', '.join(rows[0][1])}; add it")
    wanted_folds = set(folds)
    if empty := wanted_folds - {row["fold"] for _, row in rows}:
        raise DataError(f"{path}: no recordings in fold {', '.join(sorted(empty))}; correct --folds")
    pool: dict[str, list[Recording]] = {}
    for line, row in sorted(rows, key=lambda item: (item[1]["category"], item[1][column])):
        if row["fold"] not in wanted_folds:
            continue
        audio = folder / "audio" / row[column]
        if not audio.is_file():
            raise DataError(f"{path}, line {line}: {audio} is missing; add it or remove its row")
        facts = (row.get(name, "") for name in ("author", "clip_license", "freesound_url"))
        pool.setdefault(row["category"], []).append(Recording(audio, row["category"], row["fold"], *facts))
    return pool


def credit(recordings: Iterable[Recording | None]) -> tuple[str, str, str]:
    """Return three texts: pages, authors and licences of the recordings in a clip, joined by "; "; "" if unknown."""
    known = [one for one in recordings if one]
    facts = ([one.url for one in known], [one.author for one in known], [one.licence for one in known])
    links, authors, licences = ("; ".join(dict.fromkeys(filter(None, values))) for values in facts)
    return links, authors, licences


def cut(recording: Recording, rng: Rng, n: int, fill: bool = False) -> Samples:
    """Return a random part of a recording, at most n samples; with `fill`, a shorter recording is repeated up to n.

    The sample rate is SAMPLE_RATE. Silent ends are left out. The part contains some loud sound, because some recordings
    have long pauses. A recording of at most n samples is returned completely; repetitions have short pauses between
    them.
    Raises AudioError for a recording that cannot be read, and for silence.
    """
    sound, loud = _read_trimmed(recording.path)
    if len(sound) > n:
        at = loud[rng.integers(len(loud))]
        latest = min(at, len(sound) - n)
        start = rng.integers(min(latest, max(0, at + _FRAME - n)), latest + 1)
        return sound[start : start + n]
    parts = [sound]
    while fill and sum(map(len, parts)) < n:
        parts += [np.zeros(int(rng.uniform(0.1, 0.4) * SAMPLE_RATE)), sound]
    return np.concatenate(parts)[:n]


@lru_cache(maxsize=512)
def _read_trimmed(path: Path) -> tuple[Samples, list[int]]:
    """Read a recording without its silent ends; return it, and the index of the first sample of each loud frame."""
    sound = read_audio(path, SAMPLE_RATE).astype(np.float64)
    power = frame_powers(sound, _FRAME)
    if not power.any():
        raise AudioError(f"{path}: contains only silence; remove its row from the table")
    begin, end = _audible_range(power)
    loud = np.flatnonzero(power > power.max() * 10 ** (LOUD_DB / 10))
    return sound[begin:end], (loud * _FRAME - begin).tolist()


def without_silent_ends(sound: Samples) -> Samples:
    """Return a sound from its first to its last audible frame of 10 ms; a sound without one is returned whole."""
    begin, end = _audible_range(frame_powers(sound, _FRAME))
    return sound[begin:end]


def frame_powers(sound: Samples, length: int) -> Samples:
    """Return the mean power of every frame of `length` samples; the last frame is filled up with zeros."""
    result: Samples = np.mean(np.pad(sound, (0, -len(sound) % length)).reshape(-1, length) ** 2, axis=1)
    return result


def _audible_range(power: Samples) -> tuple[int, int]:
    """Return the indices of the first audible sample, and of the first one after the last audible frame.

    power: Mean power of each frame.
    """
    audible = np.flatnonzero(power >= power.max() * 10 ** (SILENCE_DB / 10))
    return int(audible[0]) * _FRAME, (int(audible[-1]) + 1) * _FRAME

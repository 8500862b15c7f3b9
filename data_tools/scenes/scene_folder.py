"""Folders of scenes.

Manages folders of composed scenes: settings, folds of recordings by split, audio files.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data_tools.audio import encoded
from data_tools.cli import counted
from data_tools.datasets.clotho import CLOTHO_SPLITS
from data_tools.errors import DataError
from data_tools.files import read_json, replacing, write_text
from data_tools.manifest import Split
from data_tools.scenes.captions import MAX_HELD_OUT
from data_tools.scenes.recordings import Pool, read_recordings
from data_tools.scenes.synth import CLASSES, SAMPLE_RATE, Samples

FORMAT = 1  # version of the drawing: raised if the same arguments would give other files
DEFAULT_FOLDS = {"development": ["1", "2", "3"], "validation": ["4"], "evaluation": ["5"]}


@dataclass(frozen=True, kw_only=True)
class FolderSettings:
    """All settings that determine the files; stored in scenes.json.

    Attributes:
        name: Name of the data set.
        seed: Decides all random choices.
        counts: Number of clips per split.
        held_out: Share of the phrasings (wordings of a sound class) and of the templates of captions that only test
            splits use.
        recordings: SHA-256 of the table of labelled recordings; None: events are synthesised.
        folds: Folds of the recordings per split; None for synthesised events.
        format: Version of the program that draws the scenes; another version makes other files from the same settings.
    """

    name: str
    seed: int
    counts: dict[Split, int]
    held_out: float = 0.0
    recordings: str | None = None
    folds: dict[str, list[str]] | None = None
    format: int = FORMAT

    def check(self, clip: str) -> None:
        """Raise DataError if a setting of the scenes is out of range. clip: The word for a clip in the messages."""
        if self.seed < 0:
            raise DataError(f"the seed {self.seed} is negative; use 0 or more")
        if not self.counts:
            raise DataError(f"the number of {clip}s is 0 in every split; use 1 or more in one of them")
        for split, count in self.counts.items():
            if count < 0:
                raise DataError(f"the number of {clip}s of the split {split} is {count}; use 0 or more")
        if not 0 <= self.held_out <= MAX_HELD_OUT:
            raise DataError(f"the held-out share {self.held_out} is out of range; use 0 to {MAX_HELD_OUT}")

    def pools(self, folder: Path | None, least: int, requirement: str) -> dict[Split, Pool]:
        """Return, per split, a dict from sound class to recordings. least: Minimum number of classes of a split.

        Args:
            folder: Folder of the recordings; None: events are synthesised, and no class has a recording.
            requirement: Text for the error message that states the minimum.
        Raises DataError for a split with fewer classes, and for a folder without labelled recordings.
        """
        if folder is None:
            return {split: {name: [] for name in CLASSES} for split in self.counts}
        folds = self.folds or {}
        pools: dict[Split, Pool] = {split: read_recordings(folder, folds[split]) for split in self.counts}
        for split, pool in pools.items():
            if len(pool) < least:
                raise DataError(
                    f"{folder}: folds of {split} have {counted(len(pool), 'category')}, but {requirement}; add folds"
                )
        return pools


def claim(out: Path, wanted: Mapping[str, Any]) -> None:
    """Record the settings of a new data folder, or check that an existing one was made with the same settings.

    wanted: The settings that determine all files of the folder. Raises DataError for a folder with other content.
    """
    path = out / "scenes.json"
    wanted = json.loads(json.dumps(wanted))
    if not path.is_file():
        if out.is_dir() and any(not entry.name.startswith(".") for entry in out.iterdir()):
            raise DataError(f"{out}: contains files but no scenes.json; choose a new or empty folder")
        write_text(path, json.dumps(wanted, indent=2) + "\n")
        return
    begun = read_json(path)
    if begun != wanted:
        begun = begun if isinstance(begun, dict) else {}
        before = {key: begun.get(key) for key in wanted if begun.get(key) != wanted[key]}
        changed = (f"{key} {json.dumps(value)}, not {json.dumps(wanted[key])}" for key, value in before.items())
        raise DataError(f"{out}: was made with {'; '.join(changed)}; choose another folder or delete this one")


def parse_folds(values: list[str] | None) -> dict[str, list[str]]:
    """Parse texts like "development=1,2,3"; return a dict from split to folds.

    Raises DataError for a repeated fold or split.
    """
    if values is None:
        return DEFAULT_FOLDS
    folds: dict[str, list[str]] = {}
    for value in values:
        split, equals, names = value.partition("=")
        if split not in CLOTHO_SPLITS or not equals or not all(names.split(",")):
            raise DataError(f"--folds {value}: write it as development=1,2,3 (or validation, evaluation)")
        if split in folds:
            raise DataError(f"--folds {value}: {split} comes twice; name a split once")
        folds[split] = []
        for name in names.split(","):
            if used := [other for other, taken in folds.items() if name in taken]:
                raise DataError(
                    f"--folds {value}: fold {name} is already in {used[0]}; no recording may be in two splits"
                )
            folds[split].append(name)
    return folds


def write_samples(path: Path, samples: Samples) -> None:
    """Write a 16-bit WAV file. samples: (n,) at SAMPLE_RATE, in [-1, 1]."""
    with replacing(path) as temporary:
        temporary.write_bytes(encoded(np.round(samples * 32767).astype(np.int16), SAMPLE_RATE, "WAV", "PCM_16"))

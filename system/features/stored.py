"""Look up which clips have frames.

Look up which clips already have frames, without computing or writing anything.
"""

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

import numpy as np

from data_tools.errors import KitError
from data_tools.files import free_bytes
from data_tools.manifest import Clip
from system.experts.base import ExpertSettings
from system.features.bank import keys_in

LEFT_FREE = 10 * 2**30  # bytes of the disk that a bank leaves for checkpoints


def bank_fits(banks: Path, size: float) -> bool:
    """Return whether a bank of `size` bytes fits on the disk of the folder `banks`, with some free space left."""
    return size + LEFT_FREE < free_bytes(banks)


def waveforms_fit(clips: Iterable[Clip], experts: Mapping[str, ExpertSettings], banks: Path) -> bool:
    """Return whether the disk of the folder `banks` has room for the clips' waveforms that are not stored yet."""
    missing = seconds_missing(clips, experts, banks)
    sizes = (expert.rate * np.dtype(expert.dtype).itemsize * missing[name] for name, expert in experts.items())
    return bank_fits(banks, sum(sizes))


def seconds_missing(clips: Iterable[Clip], experts: Mapping[str, ExpertSettings], banks: Path) -> dict[str, float]:
    """Return a dict from expert to the seconds of audio for which its bank has no frames.

    Clips whose content key (a checksum of the audio file) is not stored count as missing. If an expert's weights are
    missing, all clips count as missing, since the folder of stored frames depends on the weights.
    """
    stored = {name: _stored_keys_of(expert, banks) for name, expert in experts.items()}
    missing = dict.fromkeys(experts, 0.0)
    with closing(_StoredKeys(banks / "contents.sqlite")) as remembered:
        for clip in clips:
            key = remembered.content(clip.path) if any(stored.values()) else None
            for name, keys in stored.items():
                missing[name] += 0.0 if key in keys else clip.seconds or 0.0
    return missing


def _stored_keys_of(expert: ExpertSettings, banks: Path) -> set[str]:
    """Return the content keys (checksums of audio) of all clips whose frames are in an expert's bank."""
    if not any(banks.glob(f"{expert.kind}-*/index.jsonl")):  # then the weights need not be read
        return set()
    try:
        return keys_in(banks / expert.bank_name())
    except (KitError, OSError):
        return set()


class _StoredKeys:
    """Reader of the content keys (checksums of audio files) that ContentKeys has stored in the folder of banks.

    No key is found if the store is missing, in use, or damaged; `run` reports damage.
    """

    def __init__(self, path: Path) -> None:
        """Open the SQLite file of content keys (checksums of files) for reading, if possible."""
        self._store: sqlite3.Connection | None = None
        with suppress(sqlite3.Error):
            self._store = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=1)

    def content(self, path: str) -> str | None:
        """Return the stored content key (checksum) of a file; None if none is stored, or if the file has changed."""
        if self._store is None:
            return None
        try:
            command = "select size, changed, sha256 from files where path = ?"
            rows = self._store.execute(command, (path,)).fetchall()
            status = Path(path).stat() if rows else None
        except (sqlite3.Error, UnicodeDecodeError):
            self.close()
            return None
        except OSError:
            return None
        return str(rows[0][2]) if status and rows[0][:2] == (status.st_size, status.st_mtime_ns) else None

    def close(self) -> None:
        """Close the store of content keys (checksums of files)."""
        if self._store:
            self._store.close()
        self._store = None

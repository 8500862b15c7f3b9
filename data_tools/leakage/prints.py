"""Fingerprints of many recordings, kept in a temporary file: those of 400,000 clips take 10 GB and more."""

import tempfile
import weakref
from collections.abc import Sequence
from typing import overload

import numpy as np

from data_tools.leakage.fingerprint import Fingerprint

_FIELDS = {"frames": np.int32, "bins": np.uint16, "levels": np.float16, "codes": np.uint32, "counts": np.uint8}


class StoredPrints:
    """Fingerprints by clip id, in the system's folder of temporary files until the process ends. Not for several
    threads at once."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the fingerprints are asked for
        weakref.finalize(self, self._file.close)
        self._end = 0
        self._records: dict[str, tuple[int, int, int, float]] = {}  # where it begins, peaks, pairs, noise_score
        self.unsure: list[str] = []  # ids of recordings so short or steady that noise would hide a copy of them

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, clip_id: str) -> bool:
        return clip_id in self._records

    def store(self, clip_id: str, one: Fingerprint) -> None:
        """Raises OSError, naming the folder of temporary files, where that is full."""
        data = b"".join(getattr(one, name).astype(kind).tobytes() for name, kind in _FIELDS.items())
        try:
            self._file.seek(self._end)
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, tempfile.gettempdir()) from error
        self._records[clip_id] = (self._end, len(one.frames), len(one.codes), one.noise_score)
        self._end += len(data)
        if not one.sure:
            self.unsure.append(clip_id)

    def __getitem__(self, clip_id: str) -> Fingerprint:
        begin, peaks, pairs, noise_score = self._records[clip_id]
        self._file.seek(begin)
        sizes = [pairs if name == "codes" else peaks for name in _FIELDS]
        frames, bins, levels, codes, counts = (
            np.frombuffer(self._file.read(size * np.dtype(kind).itemsize), kind)
            for size, kind in zip(sizes, _FIELDS.values(), strict=True)
        )
        return Fingerprint(frames, bins, levels, codes, counts, noise_score)

    def of(self, clip_ids: Sequence[str]) -> "PrintsOf":
        """The fingerprints of these clips, each read when it is asked for."""
        return PrintsOf(self, clip_ids)


class PrintsOf(Sequence[Fingerprint]):
    """Some stored fingerprints, in an order."""

    def __init__(self, prints: StoredPrints, clip_ids: Sequence[str]) -> None:
        self._prints, self._clip_ids = prints, clip_ids

    def __len__(self) -> int:
        return len(self._clip_ids)

    @overload
    def __getitem__(self, index: int) -> Fingerprint: ...
    @overload
    def __getitem__(self, index: slice) -> "PrintsOf": ...
    def __getitem__(self, index: int | slice) -> "Fingerprint | PrintsOf":
        if isinstance(index, slice):
            return PrintsOf(self._prints, self._clip_ids[index])
        return self._prints[self._clip_ids[index]]

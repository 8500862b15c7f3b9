"""Excerpts of clips as MP3, embedded in the page."""

import base64
from pathlib import Path

import numpy as np

from data_tools.audio import encoded, read_audio
from data_tools.errors import AudioError

RATE = 24_000  # Hz
COMPRESSION = 0.79  # of libsndfile's range at this rate: 40 kbit/s


class AudioStore:
    """Audio of a page as numbered data URIs.

    Each clip is stored once.
    """

    def __init__(self, seconds: float) -> None:
        """Create an empty store. seconds: Maximum length of an excerpt."""
        self.seconds = seconds
        self.uris: list[str] = []
        self._known: dict[Path, tuple[int | None, str]] = {}

    def add(self, path: Path) -> tuple[int | None, str]:
        """Store an excerpt of a file.

        Return (its number, ""), or (None, reason).
        """
        if path not in self._known:
            self._known[path] = self._encode(path)
        return self._known[path]

    def _encode(self, path: Path) -> tuple[int | None, str]:
        try:
            data = to_mp3(path, self.seconds)
        except (AudioError, OSError) as error:
            return None, f"no audio: {path.name} cannot be read ({type(error).__name__})"
        self.uris.append(f"data:audio/mpeg;base64,{base64.b64encode(data).decode()}")
        return len(self.uris) - 1, ""


def to_mp3(path: Path, seconds: float) -> bytes:
    """Return the beginning of an audio file as mono MP3."""
    wave = np.clip(read_audio(path, RATE, seconds=seconds), -1, 1)
    return encoded(wave, RATE, "MP3", "MPEG_LAYER_III", compression_level=COMPRESSION, bitrate_mode="CONSTANT")

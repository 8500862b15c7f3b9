"""Excerpts of clips as MP3, embedded in the page."""

import base64
from pathlib import Path

import numpy as np

from data_tools.audio import encoded, read_audio
from data_tools.errors import AudioError

RATE = 24_000  # Hz
COMPRESSION = 0.79  # of libsndfile's range at this rate: 40 kbit/s


class AudioStore:
    """Audio of a page as numbered data URIs, each clip once."""

    def __init__(self, seconds: float) -> None:
        """Create an empty store. seconds: Maximum length of an excerpt."""
        self.seconds = seconds
        self.uris: list[str] = []
        self._known: dict[Path, tuple[int | None, str]] = {}

    def add(self, path: Path) -> tuple[int | None, str]:
        """Store an excerpt of a file.

        Returns:
            Its number and "", or None and the reason.
        """
        if path not in self._known:
            try:
                wave = np.clip(read_audio(path, RATE, seconds=self.seconds), -1, 1)
                data = encoded(
                    wave, RATE, "MP3", "MPEG_LAYER_III", compression_level=COMPRESSION, bitrate_mode="CONSTANT"
                )
                self.uris.append(f"data:audio/mpeg;base64,{base64.b64encode(data).decode()}")
                self._known[path] = len(self.uris) - 1, ""
            except (AudioError, OSError) as error:
                self._known[path] = None, f"no audio: {path.name} cannot be read ({type(error).__name__})"
        return self._known[path]

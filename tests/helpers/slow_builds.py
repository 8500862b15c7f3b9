"""Builds of a bank that take long enough to be killed, and that list the computed clips."""

import hashlib
import os
import time
from pathlib import Path

import numpy as np
import torch

from data_tools.manifest import Clip
from system.audio import Frames
from system.audio.logmel import LogMel
from system.features.extract import build_features

LOGMEL = LogMel(kind="logmel", sample_rate=16_000, bands=32, window_seconds=0.04, hop_seconds=0.02, stack=4)
SECONDS = 0.03  # a clip


def digest(wave: np.ndarray) -> str:
    return hashlib.sha256(wave.tobytes()).hexdigest()


def build_slowly(clips: list[Clip], banks: Path, rank: int = 0, count: int = 1) -> None:
    """Build slowly in a process of the test; it writes one line per clip, see `computed`."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(count)}
    original = LogMel.load

    def slow(self: LogMel, device: torch.device) -> Frames:
        frames = original(self, device)

        def output(waves: list[np.ndarray]) -> list[np.ndarray]:
            with (banks / "computed").open("a") as file:
                file.writelines(f"{os.getpid()} {digest(wave)}\n" for wave in waves)
            time.sleep(SECONDS * len(waves))
            return frames(waves)

        return output

    LogMel.load = slow  # type: ignore[method-assign]
    build_features(clips, {"logmel": LOGMEL}, banks)


def computed(banks: Path) -> list[tuple[int, str]]:
    """The process and the wave's digest of every clip that was computed, in order."""
    lines = (banks / "computed").read_text().splitlines() if (banks / "computed").exists() else []
    return [(int(line.split()[0]), line.split()[1]) for line in lines]

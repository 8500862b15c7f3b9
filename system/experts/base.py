"""What an expert is: settings that name a frozen audio model, its facts, and a function from waves to frames."""

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path

import numpy as np

from system.errors import KitError
from system.strict import Strict

Frames = Callable[[list[np.ndarray]], list[np.ndarray]]


class ExpertSettings(Strict):
    """Settings of one frozen audio model, as a recipe gives them.

    A subclass names its `kind`, its facts (`sample_rate` in Hz, `dim`, `frames_per_second`, `parameters`), where its
    weights are, and `load`, which alone imports torch. Any change of what `load` computes must raise `version`.
    """

    kind: str

    @property
    def version(self) -> int:
        """Raised by hand when the same settings begin to give other frames: old banks are then not found."""
        return 1

    @property
    @abstractmethod
    def rate(self) -> int:
        """Sample rate of the waves it takes, in Hz."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """D, values in a frame."""

    @property
    @abstractmethod
    def frames_per_second(self) -> float:
        """Frames a second of audio, for plans and estimates."""

    def weight_file(self) -> Path | None:
        """The checkpoint file, or None for an expert that has no weights."""
        return None

    def weight_source(self) -> str:
        """Where the checkpoint is published, for the message that says it is missing."""
        return ""

    @abstractmethod
    def load(self) -> Frames:
        """Return a function: waves, each (N,) float32 mono at `rate` -> frames, each (T, D) float32, T >= 1.

        The frames of a wave never depend on the other waves of the call.
        """

    def checksum(self) -> str | None:
        """sha256 of the weight file; KitError with its name and published place when it is missing."""
        path = self.weight_file()
        if path is None:
            return None
        if not path.is_file():
            raise KitError(f"{self.kind}: no weight file {path}; {self.weight_source()}, then put it there")
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def identity(self) -> dict[str, object]:
        """All that decides the frames: settings (but not where the weights lie), version, checksum of the weights."""
        settings = self.model_dump(exclude={"weights"})
        return {**settings, "version": self.version, "weights_sha256": self.checksum()}

    def key(self) -> str:
        """Name of the bank that holds this expert's frames: kind and 12 hex digits of its identity."""
        text = json.dumps(self.identity(), sort_keys=True)
        return f"{self.kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

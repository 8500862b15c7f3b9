"""Published frames, one file per clip.

Frames that others have computed and published, one file per clip.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from data_tools.errors import AudioError
from data_tools.frames import read_frames
from data_tools.manifest import Clip, Text
from data_tools.settings import Positive
from system.experts.base import LENGTH_TOLERANCE, SPARE, ExpertSettings, Frames

if TYPE_CHECKING:
    import torch

SAME_HOP = 0.01  # greatest relative difference between the hop of a recipe and that of all files


class FeatureFiles(ExpertSettings):
    """Frames (T, values) that others have published, from .npz or .npy files.
    The manifest names these files instead of audio files; `lbar data castella --features` writes such a
    manifest. Example: the MS-CLAP frames that the 2026 edition publishes instead of its blind recordings.

    The bank stores the frames unchanged in float16. The organisers' baseline divides every frame by its L2 norm + 1e-5.
    """

    computed: ClassVar[bool] = False

    kind: Literal["feature_files"]
    values: Positive  # values in a frame, D
    hop_seconds: Annotated[float, Field(gt=0)]  # seconds from one frame to the next; a frame covers its hop
    array: str = "features"  # name of the frames in an .npz file
    model: Text  # network that computed the frames, as declared in a package
    model_parameters: Annotated[int, Field(ge=0)] = 0  # frozen parameters of that network; 0: not counted

    usual: ClassVar[dict[str, object]] = {"values": 768, "hop_seconds": 1.0, "model": "MS-CLAP"}
    rate: ClassVar[int] = 44_100  # of MS-CLAP; no audio is read

    @property
    def dim(self) -> int:
        """Number of values in a frame."""
        return self.values

    @property
    def frames_per_second(self) -> float:
        """Number of frames per second of audio."""
        return 1 / self.hop_seconds

    @property
    def parameters(self) -> int:
        """Number of parameters of the model that computed the frames."""
        return self.model_parameters

    @property
    def pretrained(self) -> str | None:
        """Name of the pre-trained model that computed the frames."""
        return self.model

    def read(self, path: str) -> np.ndarray:
        """Read the frames (T, D) float32 of a .npz or .npy file. Raises AudioError if it has no such frames."""
        frames = read_frames(path, self.array)
        if frames.shape[1] != self.values:
            raise AudioError(
                f"{path}: its frames have {frames.shape[1]} values, but the expert's setting `values` is "
                f"{self.values}; correct the setting or the file"
            )
        return frames

    def file_fault(self, clip: Clip) -> tuple[bool, str] | None:
        """Return (whether the file is unusable, message) for frames that are unreadable or have a wrong length.

        Returns None if the frames fit, or if the file is missing.
        """
        if not Path(clip.path).exists():
            return None
        try:
            seconds = len(self.read(clip.path)) * self.hop_seconds
        except AudioError as error:
            return True, str(error)
        difference = abs(seconds - clip.seconds) if clip.seconds else 0.0
        if not clip.seconds or difference <= LENGTH_TOLERANCE + self.hop_seconds:
            return None
        return difference > SPARE * clip.seconds, (
            f"{clip.path}: its frames last {seconds:.2f} s with `hop_seconds` {self.hop_seconds:g}, but its recording "
            f"lasts {clip.seconds:.2f} s; replace the file, or correct `hop_seconds` or the manifest"
        )

    def setting_fault(self, clips: Sequence[Clip]) -> str | None:
        """Return a message if all recordings have the same hop between frames, but not the hop of the setting.

        The hop of a recording is its length divided by its number of frames. There is a message if three conditions are
        met: the hops of all recordings differ by at most 1 % (SAME_HOP); they differ from `hop_seconds` by more than
        this share; and every recording has more than one frame too many or too few for `hop_seconds`. If the recordings
        have different hops, single files are wrong, and not the setting; the result is then None.
        """
        known = [(count, clip.seconds) for clip in clips if clip.seconds and (count := self._frame_count(clip))]
        hops = [seconds / count for count, seconds in known]
        if len(known) < 2 or max(hops) > (1 + SAME_HOP) * min(hops):
            return None
        hop = statistics.median(hops)
        off_by_frames = all(abs(seconds / self.hop_seconds - count) > 1 for count, seconds in known)
        if not off_by_frames or abs(hop / self.hop_seconds - 1) <= SAME_HOP:
            return None
        return (
            f"`hop_seconds` {self.hop_seconds:g} does not fit: the frames of all checked files and the lengths of "
            f"their recordings suggest {hop:.3g}; correct the setting or the manifest"
        )

    def _frame_count(self, clip: Clip) -> int:
        """Return the number of a clip's frames; 0 if they cannot be read."""
        try:
            return len(self.read(clip.path)) if Path(clip.path).exists() else 0
        except AudioError:
            return 0

    def load(self, device: "torch.device") -> Frames:
        """Return a function that returns its input as float32: frames that were already read from files."""
        return lambda waves: [np.asarray(frames, np.float32) for frames in waves]

"""Sources of frames without a network.

They are waveforms, and frames and embeddings that other programs computed.
"""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from data_tools.arrays import HINT, Vectors, read_frames, read_vectors
from data_tools.errors import AudioError, KitError
from data_tools.manifest import Clip, Text
from data_tools.settings import Size
from system.audio import SPARE, Device, ExpertSettings, Frames, Need, length_fault

FULL_SCALE = 32_768  # stored value of a sample of 1.0


def to_int16(wave: np.ndarray) -> np.ndarray:
    """Convert a wave to 16-bit integers.

    Args:
        wave: (N,) float32 in [-1, 1]; louder samples are clipped.

    Returns:
        (N, 1).
    """
    scaled = wave * FULL_SCALE
    return scaled.round(out=scaled).clip(-FULL_SCALE, FULL_SCALE - 1, out=scaled).astype(np.int16)[:, None]


class Waveform(ExpertSettings):
    """Frames (N, 1), one per sample: 16-bit integers."""

    kind: Literal["waveform"]
    sample_rate: int = Field(ge=8_000, le=48_000)  # Hz

    dim: ClassVar = 1
    dtype: ClassVar = "int16"

    @property
    def rate(self) -> int:
        return self.sample_rate

    @property
    def frames_per_second(self) -> float:
        return float(self.sample_rate)

    def load(self, device: Device) -> Frames:
        return lambda waves: [to_int16(wave) for wave in waves]


class _Stored(ExpertSettings):
    """Frames that another program computed, and wrote to files."""

    values: Size  # of a frame or an embedding, D
    model: Text  # that computed them, as declared in a package
    model_parameters: Annotated[int, Field(ge=0)] = 0  # of that model; 0: not counted

    computed: ClassVar = False

    def count_parameters(self) -> int:
        return self.model_parameters

    @property
    def dim(self) -> int:
        return self.values

    @property
    def pretrained(self) -> str | None:
        return self.model

    def load(self, device: Device) -> Frames:
        return lambda frames: frames


class FeatureFiles(_Stored):
    """Frames (T, values) from .npz or .npy files.

    The manifest names these files instead of audio files. An example are the MS-CLAP frames that the 2026 edition
    publishes instead of its blind recordings. The bank stores them unchanged in float16; the organisers' baseline
    divides every frame by its L2 norm + 1e-5.
    """

    kind: Literal["feature_files"]
    hop_seconds: Annotated[float, Field(gt=0)]  # seconds from one frame to the next; a frame covers its hop
    array: str = "features"  # name of the frames in an .npz file

    rate: ClassVar = 44_100  # of MS-CLAP; no audio is read

    @property
    def frames_per_second(self) -> float:
        return 1 / self.hop_seconds

    def read(self, path: str) -> np.ndarray:
        """Read the frames of a file.

        Returns:
            (T, D) float32.

        Raises:
            AudioError: The file has no such frames.
        """
        frames = read_frames(path, self.array)
        if frames.shape[1] != self.values:
            raise AudioError(f"{path}: its frames have {frames.shape[1]} values, not {self.values}; correct `values`")
        return frames

    def file_fault(self, clip: Clip) -> str | None:
        try:
            return length_fault(clip, len(self.read(clip.path)) * self.hop_seconds, self.hop_seconds, SPARE)
        except AudioError as error:
            return str(error)


class EmbeddingFile(_Stored):
    """Embeddings of clips, read instead of audio.

    An embedding is found by its clip's id, or else by the clip's file name.
    """

    kind: Literal["embedding_file"]
    files: Annotated[list[str], Field(exclude=True)]  # .npz; their checksums identify them

    reads_clips: ClassVar = False
    dtype: ClassVar = "float32"
    rate: ClassVar = 0  # no audio is read
    frames_per_second: ClassVar = 1 / 30  # one embedding per clip; `check` takes clips of 30 s

    @property
    def frame_description(self) -> str:
        return f"{self.dim}-d, one per clip, read from {' and '.join(self.files)}"

    def needs(self) -> list[Need]:
        cure = f"write the file with the program that computes your embeddings; {HINT}"
        return [Need(f"files.{number}", name, cure=cure) for number, name in enumerate(self.files)]

    def file_fault(self, clip: Clip) -> str | None:
        try:
            return None if self.read_embeddings().name_of(clip) else self.missing_embedding(clip)
        except KitError as error:
            return str(error)

    def read_embeddings(self) -> Vectors:
        """Read the embeddings.

        Raises:
            KitError: A file is unreadable, or embeddings have another size.
        """
        return read_vectors(self.files, "clip").require_dim(self.values, self.files)

    def missing_embedding(self, clip: Clip) -> str:
        """Return the message for a clip without an embedding."""
        files = " and ".join(self.files)
        return f"{files}: no embedding has the id or file name of clip {clip.id}; write the file again with all clips"

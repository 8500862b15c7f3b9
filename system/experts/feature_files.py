"""Frames that somebody has computed and published, a file a clip."""

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from data_tools.audio.read import AudioError
from data_tools.documents.lines import Text
from data_tools.documents.strict import Positive
from system.experts.base import ExpertSettings, Frames

if TYPE_CHECKING:
    import torch


class FeatureFiles(ExpertSettings):
    """Frames (T, values) of .npz or .npy files that a manifest names in place of audio, as
    `python -m data_tools castella --features` writes it; such as those of MS-CLAP that the 2026 edition publishes: its
    blind recordings are not handed out.

    Kept in float16 as they are; the organisers' baseline divides every frame by its length (L2) + 1e-5.
    """

    kind: Literal["feature_files"]
    values: Positive  # in a frame, D
    hop_seconds: Annotated[float, Field(gt=0)]  # from one frame to the next; a frame stands for its hop
    array: str = "features"  # name of the frames in an .npz file
    model: Text  # the network that made them, as a package declares it
    model_parameters: Annotated[int, Field(ge=0)] = 0  # of that network, frozen; 0: not counted

    usual: ClassVar[dict[str, object]] = {"values": 768, "hop_seconds": 1.0, "model": "MS-CLAP"}
    rate: ClassVar[int] = 44_100  # of MS-CLAP; no audio is read
    cost: ClassVar[float] = 0.00001  # reading alone

    @property
    def dim(self) -> int:
        return self.values

    @property
    def frames_per_second(self) -> float:
        return 1 / self.hop_seconds

    @property
    def parameters(self) -> int:
        return self.model_parameters

    @property
    def pretrained(self) -> str | None:
        return self.model

    def read(self, path: str) -> np.ndarray:
        """(T, D) float32. AudioError for what is no such file."""
        try:
            with Path(path).open("rb") as file:
                loaded = np.load(file, allow_pickle=False)
                frames = loaded if isinstance(loaded, np.ndarray) else loaded[self.array]
        except KeyError:
            raise AudioError(f"{path}: has no array {self.array!r}; name it by the expert's setting array") from None
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise AudioError(f"{path}: cannot be read as frames of feature_files (.npz or .npy: {error})") from None
        if frames.ndim != 2 or frames.shape[1] != self.values or not len(frames) or frames.dtype.kind not in "fiu":
            said = f"{frames.dtype} of shape {frames.shape}"
            raise AudioError(
                f"{path}: holds {said}, not frames of {self.values} numbers; see the expert's setting values"
            )
        if not np.isfinite(frames).all():
            raise AudioError(f"{path}: has frames that are not finite")
        return frames.astype(np.float32)

    def load(self, device: "torch.device") -> Frames:
        return lambda waves: [np.asarray(frames, np.float32) for frames in waves]

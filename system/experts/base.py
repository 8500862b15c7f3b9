"""The interface of an expert: settings of a frozen audio model, its facts, and a function from waves to frames."""

import functools
import hashlib
import json
import logging
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, get_args

import numpy as np
from pydantic import SerializerFunctionWrapHandler, model_serializer

from data_tools.audio.resampling import Resampling
from data_tools.documents.json_text import sha256_of
from data_tools.documents.strict import Strict
from data_tools.errors import KitError

if TYPE_CHECKING:
    import torch


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file, cached while its size and modification time are unchanged."""
    status = path.stat()
    return _sha256(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache
def _sha256(path: Path, size: int, changed: int) -> str:
    return sha256_of(path)


SHOWN = 12  # digits of a checksum, in a sentence


@functools.cache
def _warn_other(kind: str, path: Path, found: str, known: str) -> None:
    log.warning(
        "%s: %s is not the published file: its sha256 begins with %s, the published one's with %s; "
        "fetch it again unless that is meant",
        kind, path, found[: len(known)][:SHOWN], known[:SHOWN],
    )  # fmt: skip


log = logging.getLogger(__name__)

Frames = Callable[[list[np.ndarray]], list[np.ndarray]]
Device: TypeAlias = "torch.device"  # naming it imports no torch


class Resampled(Strict):
    """What hears audio files of any rate at a rate of its own.

    Features of papers of 2022 were computed with `kaiser_best_0.2`: by torchopenl3, which asks for resampy under 0.3,
    and by librosa 0.8. Largest difference of frames by their largest value, recordings of ESC-10 at 44.1 kHz with noise
    at -60 dB, filled weights, median of twelve and the range:

                soxr_hq to kaiser_best_0.2   kaiser_best to it          soxr_hq to kaiser_best
    openl3      0.037 (0.028 to 0.061)       0.061 (0.049 to 0.078)     0.049 (0.038 to 0.081)
    panns       0.0017 (0.0014 to 0.0029)    0.0062 (0.0031 to 0.011)   0.0076 (0.0033 to 0.013)
    vggish      0.0015 (0.0005 to 0.0047)    0.0076 (0.0044 to 0.0096)  0.0075 (0.0048 to 0.011)
    vggsound    0.0020 (0.0002 to 0.011)     0.0049 (0.0003 to 0.022)   0.0063 (0 to 0.031)
    """

    resampling: Resampling = "soxr_hq"  # how files of other rates are brought to its own

    @model_serializer(mode="wrap")
    def _without_default_resampling(self, values: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Banks and runs are found by their settings: those from before this was a setting have soxr_hq."""
        settings: dict[str, Any] = values(self)
        if self.resampling == "soxr_hq":
            settings.pop("resampling", None)
        return settings


class ExpertSettings(Resampled):
    """Settings of one frozen audio model, as a recipe gives them.

    A subclass names its `kind`, its facts (`rate` in Hz, `dim`, `frames_per_second`, `cost`, `parameters`), where its
    weights are, and `load`, which alone imports torch. Any change of what `load` computes must raise `version`."""

    kind: str

    usual: ClassVar[dict[str, Any]] = {}  # settings that the verb `experts` shows it with; weight files as published
    version: ClassVar[int] = 1  # raised by hand when the same settings begin to give other frames: other banks
    dtype: ClassVar[str] = "float16"  # what its frames are kept in: float16, float32, or int16
    computed: ClassVar[bool] = True  # from audio, so that its frames last as long as the clip
    cost: ClassVar[float] = 0.0  # seconds that two CPU cores take for a second of audio, as measured, for plans

    @classmethod
    def in_folder(cls, folder: Path) -> Self:
        """With its usual settings, its weight files in a folder."""
        (kind,) = get_args(cls.model_fields["kind"].annotation)
        expert = cls.model_validate({"kind": kind, **cls.usual})
        return expert.model_copy(update={name: str(folder / path.name) for name, path in expert.weight_files().items()})

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

    @property
    def first_centre(self) -> float:
        """Seconds from the beginning of a clip to the centre of its first frame."""
        return 0.5 / self.frames_per_second

    @property
    def parameters(self) -> int:
        """Frozen parameters, as the model's authors count them."""
        return 0

    @property
    def pretrained(self) -> str | None:
        """The pre-trained model behind frames that are read and not computed; None: `kind` says it."""
        return None

    def weight_files(self) -> dict[str, Path]:
        """The checkpoint files, by the setting that names each; none for an expert without weights."""
        return {}

    def published_addresses(self) -> dict[str, str]:
        """The address where each checkpoint file is published, by the setting that names it."""
        return {}

    def known_sha256(self) -> dict[str, str]:
        """The first digits of the published files' sha256, by the setting that names each; of those that are known."""
        return {}

    @property
    def hub_model(self) -> str | None:
        """The name or folder of a model of the hub, which is fetched as a whole; None for weights in single files."""
        return None

    def weight_source(self) -> str:
        """Where the checkpoints come from, for the message that says one is missing."""
        return f"published at {' and '.join(self.published_addresses().values())}"

    def read(self, path: str) -> "np.ndarray":
        """What `load`'s function takes of a clip's file: its wave, (N,) float32 mono at `rate`. Raises AudioError."""
        from data_tools.audio.read import read_audio

        return read_audio(path, self.rate, self.resampling)

    @abstractmethod
    def load(self, device: Device) -> Frames:
        """Return a function: waves, each (N,) float32 mono at `rate`, N >= 1 -> frames, each (T, D) float32, T >= 1.

        It computes on `device`. The frames of a wave are the same, to float rounding, whatever the other waves of the
        call (quantised ones of `vggish` may so differ by 1), and the same to the bit when the same call is made again.
        """

    def checksums(self) -> dict[str, str]:
        """sha256 by weight file; KitError with the file's name and published place when it is missing. A file that is
        not the published one is said once, and used."""
        for name, path in self.weight_files().items():
            if not path.is_file():
                hint = f"put it there, or --set this expert's {name} to where it lies"
                raise KitError(f"{self.kind}: no weight file {path}; {self.weight_source()}; {hint}")
        found = {name: file_sha256(path) for name, path in self.weight_files().items()}
        for name in self.unpublished():
            _warn_other(self.kind, self.weight_files()[name], found[name], self.known_sha256()[name])
        return found

    def unpublished(self) -> list[str]:
        """The settings of weight files that are here and that are other files than the published ones, as far as the
        checksums of these are known."""
        files, known = self.weight_files(), self.known_sha256()
        there = [name for name in files if name in known and files[name].is_file()]
        return [name for name in there if not file_sha256(files[name]).startswith(known[name])]

    def identity(self) -> dict[str, object]:
        """All that decides the frames: settings (but not where the weights lie), version, checksums of the weights."""
        settings = self.model_dump(exclude=set(self.weight_files()))
        return {**settings, "version": self.version, "sha256": self.checksums()}

    def key(self) -> str:
        """Return the name of the bank of this expert's frames: kind and 12 hex digits of its identity."""
        text = json.dumps(self.identity(), sort_keys=True)
        return f"{self.kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


class PublishedWeights(ExpertSettings):
    """An expert whose weights are one published file."""

    weights: str  # the published file

    address: ClassVar[str]  # where the file is published

    def weight_files(self) -> dict[str, Path]:
        return {"weights": Path(self.weights)}

    def published_addresses(self) -> dict[str, str]:
        return {"weights": self.address}

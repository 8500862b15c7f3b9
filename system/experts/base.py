"""Interface of an expert.

The interface of an expert: the settings and sizes of a frozen audio model, and a function from waves to frames.
"""

import functools
import hashlib
import json
import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, get_args

import numpy as np
from pydantic import SerializerFunctionWrapHandler, model_serializer

from data_tools.audio import Resampling
from data_tools.errors import KitError
from data_tools.files import checksum
from data_tools.manifest import Clip
from data_tools.settings import Strict

if TYPE_CHECKING:
    import torch


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file, cached while its size and modification time are unchanged."""
    status = path.stat()
    return _cached_sha256(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache
def _cached_sha256(path: Path, size: int, changed: int) -> str:
    """Return the sha256 of the file `path`. The cache key is the path, size and modification time of the file."""
    return checksum(path)


LENGTH_TOLERANCE = 2.0  # seconds, the error of published lengths, see the faults that `castella` reports
SPARE = 0.1  # share of a recording that its frames may miss or exceed
READ_FILES = 20  # most files of a source that are checked
SHOWN_DIGITS = 12  # of a checksum, in a message


@functools.cache
def _warn_unpublished_weights(kind: str, path: Path, found: str, known: str) -> None:
    """Warn once that a weight file has the sha256 `found`, and not the sha256 `known` of the published file."""
    log.warning(
        "expert %s: the weight file %s differs from the published file (its sha256 begins with %s, not with %s); "
        "unless this is intended, fetch the published file",
        kind, path, found[: len(known)][:SHOWN_DIGITS], known[:SHOWN_DIGITS],
    )  # fmt: skip


log = logging.getLogger(__name__)

Frames = Callable[[list[np.ndarray]], list[np.ndarray]]
Device: TypeAlias = "torch.device"  # this alias does not import torch


class Resampled(Strict):
    """Settings of a model that resamples audio files of any rate to its own sample rate.

    Features in papers of 2022 were computed with `kaiser_best_0.2`: by torchopenl3, which requires resampy below 0.3,
    and by librosa 0.8. The table compares the frames of two resampling methods. It lists the largest difference of two
    frames, divided by the largest value of all frames: median and range over twelve recordings. These are ESC-10
    recordings at 44.1 kHz with noise at -60 dB. The models did not have the published weights, but weights that were
    computed by a formula.

                soxr_hq,                     kaiser_best,               soxr_hq,
                kaiser_best_0.2              kaiser_best_0.2            kaiser_best
    openl3      0.037 (0.028 to 0.061)       0.061 (0.049 to 0.078)     0.049 (0.038 to 0.081)
    panns       0.0017 (0.0014 to 0.0029)    0.0062 (0.0031 to 0.011)   0.0076 (0.0033 to 0.013)
    vggish      0.0015 (0.0005 to 0.0047)    0.0076 (0.0044 to 0.0096)  0.0075 (0.0048 to 0.011)
    vggsound    0.0020 (0.0002 to 0.011)     0.0049 (0.0003 to 0.022)   0.0063 (0 to 0.031)
    """

    resampling: Resampling = "soxr_hq"  # method for files of other sample rates

    @model_serializer(mode="wrap")
    def _without_default_resampling(self, values: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Convert an expert's settings to JSON, without the key `resampling` if it has the default value.

        Banks and runs are found by their settings. Banks and runs of older versions do not have this key.
        """
        settings: dict[str, Any] = values(self)
        if self.resampling == "soxr_hq":
            settings.pop("resampling", None)
        return settings


class ExpertSettings(Resampled):
    """Settings of one frozen audio model in a recipe.

    A subclass defines `kind`, `rate` (in Hz), `dim`, `frames_per_second`, `parameters`, the paths of its
    weights, and `load`. Only `load` imports torch. If the frames of `load` change, increase `version`.
    """

    kind: str

    usual: ClassVar[dict[str, Any]] = {}  # typical settings, for the verb `experts`; weight files by published names
    version: ClassVar[int] = 1  # raise it if the same settings give other frames, so that new banks are used
    dtype: ClassVar[str] = "float16"  # type of stored frames: float16, float32, or int16
    computed: ClassVar[bool] = True  # whether frames are computed from audio and cover the whole clip
    reads_clips: ClassVar[bool] = True  # whether a clip's file is read
    licence: ClassVar[str] = ""  # of the published weights, as their authors state it; "": not recorded here

    @classmethod
    def with_weights_in(cls, folder: Path) -> Self:
        """Return the settings of an expert of this kind, with usual values and with weight files in `folder`."""
        (kind,) = get_args(cls.model_fields["kind"].annotation)
        expert = cls.model_validate({"kind": kind, **cls.usual})
        return expert.model_copy(update={name: str(folder / path.name) for name, path in expert.weight_files().items()})

    @property
    @abstractmethod
    def rate(self) -> int:
        """Sample rate of the expert's input waves, in Hz."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """Number of values in a frame."""

    @property
    @abstractmethod
    def frames_per_second(self) -> float:
        """Frames per second of audio, for plans and estimates."""

    @property
    def first_centre(self) -> float:
        """Seconds from the beginning of a clip to the centre of its first frame."""
        return 0.5 / self.frames_per_second

    @property
    def parameters(self) -> int:
        """Number of frozen parameters, as counted by the model's authors."""
        return 0

    @property
    def frame_description(self) -> str:
        """Text for plans: the size of a frame, and the number of frames per second."""
        return f"{self.dim}-d, {self.frames_per_second:.2f} frames/s at {self.rate} Hz"

    def count_parameters(self) -> int:
        """Return the number of frozen parameters of the network that `load_network` loads."""
        return self.parameters

    @property
    def pretrained(self) -> str | None:
        """Name of the model whose frames are read from files; None for an expert that computes its frames.

        For such an expert, `kind` names the model.
        """
        return None

    def weight_files(self) -> dict[str, Path]:
        """Return a dict from setting name to the path of the weight file.

        The dict is empty for an expert without weights.
        """
        return {}

    def published_addresses(self) -> dict[str, str]:
        """Return a dict from setting name to the web address of the published weight file."""
        return {}

    def known_sha256(self) -> dict[str, str]:
        """Return a dict from setting name to the first digits of the sha256 of the published weight file.

        Weight files whose published sha256 is not known are left out.
        """
        return {}

    @property
    def hub_model(self) -> str | None:
        """Name or folder of the Hugging Face model that the expert uses; None if its weights are single files."""
        return None

    def weight_source(self) -> str:
        """Return a text for error messages: where to get missing weights."""
        return f"published at {' and '.join(self.published_addresses().values())}"

    def file_fault(self, clip: Clip) -> tuple[bool, str] | None:
        """Return (whether the clip's file is unusable, message) if it does not fit the settings; None if it fits.

        The first value is False for a file that can be used but perhaps does not fit. A missing file counts as fitting.
        """
        return None

    def setting_fault(self, clips: Sequence[Clip]) -> str | None:
        """Return an error message if a setting is wrong, since it fits the file of no clip; None otherwise."""
        return None

    def read(self, path: str) -> "np.ndarray":
        """Read the wave (N,) float32 mono of a clip's audio file, at the expert's `rate`. Raises AudioError."""
        from data_tools.audio import read_audio

        return read_audio(path, self.rate, self.resampling)

    @abstractmethod
    def load(self, device: Device) -> Frames:
        """Return a function that computes the frames of waves on a device.

        The function: waves of N >= 1 samples, each (N,) float32 mono at `rate` -> T >= 1 frames, each (T, D) float32.
        Other waves of the same call change a wave's frames only by float rounding (by at most 1 for the quantised
        frames of `vggish`). If the call is repeated, the result has exactly the same bits.
        """

    def checksums(self) -> dict[str, str]:
        """Return a dict from setting name to the sha256 of the weight file. Raises KitError if a file is missing.

        The error message names the file and where to get it. A file that differs from the published file is used, with
        one warning.
        """
        for name, path in self.weight_files().items():
            if not path.is_file():
                raise KitError(
                    f"expert {self.kind}: the weight file {path} is missing; {self.weight_source()}; save the file "
                    f"at this path, or set the expert's {name} to its path"
                )
        found = {name: file_sha256(path) for name, path in self.weight_files().items()}
        for name in self.settings_with_changed_weights():
            _warn_unpublished_weights(self.kind, self.weight_files()[name], found[name], self.known_sha256()[name])
        return found

    def settings_with_changed_weights(self) -> list[str]:
        """Return the names of the settings whose weight files differ from the published files.

        Only existing files with known published checksums are compared.
        """
        files, known = self.weight_files(), self.known_sha256()
        there = [name for name in files if name in known and files[name].is_file()]
        return [name for name in there if not file_sha256(files[name]).startswith(known[name])]

    def identity(self) -> dict[str, object]:
        """Return everything that determines the expert's frames: settings, version, checksums of the weights.

        Paths of files are left out.
        """
        settings = self.model_dump(exclude=set(self.weight_files()))
        return {**settings, "version": self.version, "sha256": self.checksums()}

    def bank_name(self) -> str:
        """Return the name of the bank, the folder with this expert's stored frames.

        The name is the expert's kind and 12 hex digits of a checksum of everything that determines the frames.
        """
        text = json.dumps(self.identity(), sort_keys=True)
        return f"{self.kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


class PublishedWeights(ExpertSettings):
    """An expert whose weights are one published file."""

    weights: str  # the published file

    address: ClassVar[str]  # where the file is published

    def weight_files(self) -> dict[str, Path]:
        """Return a dict from setting name to the path of the weight file."""
        return {"weights": Path(self.weights)}

    def published_addresses(self) -> dict[str, str]:
        """Return a dict from setting name to the web address of the published weight file."""
        return {"weights": self.address}


def some_file_faults(expert: ExpertSettings, clips: Sequence[Clip]) -> tuple[list[tuple[bool, str]], str | None]:
    """Check the files of some clips; return a list of their faults, and a message if all of them are faulty.

    Faults are found by the expert's `file_fault`, and are in its form: (whether the file is unusable, message). If all
    files have a fault, one of the expert's settings is probably wrong, such as the hop of frames. If `setting_fault`
    finds a wrong setting, its message is returned with an empty list. There is no message (None) if a checked file
    has no fault, or if only one file was checked.
    """
    some = clips[:: max(1, math.ceil(len(clips) / READ_FILES))]
    if text := expert.setting_fault(some):
        return [], text
    found = [fault for clip in some if (fault := expert.file_fault(clip))]
    in_all = len(found) == len(some) > 1
    return (
        found,
        f"none of {len(found)} checked files fits the expert; the first fault is: {found[0][1]}" if in_all else None,
    )

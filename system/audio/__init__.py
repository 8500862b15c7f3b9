"""Audio networks and other sources of frames, one file each.

To add one, write its file and add a line to KINDS. A file is imported when a recipe names its kind.
"""

import functools
import hashlib
import json
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from data_tools.audio import Resampling, read_audio
from data_tools.classify.model_files import fetch, folder_problem, local_folder
from data_tools.datasets.download import cure_of
from data_tools.errors import KitError
from data_tools.files import checksum
from data_tools.manifest import Clip
from system.kinds import OfKind

KINDS = {  # kind: module
    "atst_frame": "system.audio.atst_frame",
    "beats": "system.audio.beats",
    "eat": "system.audio.eat",
    "efficientat": "system.audio.efficientat",
    "feature_files": "system.audio.stored",
    "ast": "system.audio.hub",
    "clap": "system.audio.hub",
    "pe_audio": "system.audio.hub",
    "logmel": "system.audio.logmel",
    "logmel_slaney": "system.audio.logmel",
    "m2d_clap": "system.audio.m2d_clap",
    "openl3": "system.audio.openl3",
    "panns": "system.audio.panns",
    "passt": "system.audio.passt",
    "vggish": "system.audio.vggish",
    "vggsound": "system.audio.vggsound",
    "waveform": "system.audio.stored",
    "yamnet": "system.audio.yamnet",
}

LENGTH_TOLERANCE = 2.0  # seconds, the error of published lengths, see the faults that `castella` reports
SPARE = 0.1  # share of a recording that its frames may miss or exceed
READ_FILES = 20  # most files of a source that are checked

Frames = Callable[[list[np.ndarray]], list[np.ndarray]]  # waves (N,) -> frames (T, D) float32, T >= 1
Device = torch.device


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file or a folder's files.

    It is cached while size and time of a file are unchanged.
    """
    if path.is_dir():
        lines = [f"{one.name} {file_sha256(one)}\n" for one in sorted(path.iterdir())]
        return hashlib.sha256("".join(lines).encode()).hexdigest()
    status = path.stat()
    return _cached_sha256(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=4096)
def _cached_sha256(path: Path, size: int, changed: int) -> str:
    return checksum(path)


class Need(NamedTuple):
    """A published file or a hub model that settings name."""

    setting: str  # key of its path or name
    name: str  # path of the file; name or folder of the model
    address: str = ""  # of the file, or words that say where it is
    sha256: str = ""  # first digits of its checksum, where known
    cure: str = ""  # how to get a file that is not published
    model: str = ""  # kind of model, for messages; "": a file

    @property
    def path(self) -> Path:
        return Path(self.name)

    def folder(self) -> Path | None:
        """Return the model's folder on this machine."""
        with suppress(KitError):
            return local_folder(self.name, self.model)
        return None

    @property
    def place(self) -> str:
        return f"{self.model} {self.name}".strip()

    def problem(self) -> str:
        """Return the cure if it is missing or damaged, else ""."""
        if not self.model:
            return cure_of(self.path, self.cure or f"published at {self.address}")
        if (folder := self.folder()) is None:
            return "the model is neither a folder nor in the hub's cache; fetch it with lbar download RECIPE"
        said = folder_problem(folder)
        return f"{folder}: {said}; name a folder that contains a model, or a hub name" if said else ""

    def require(self) -> None:
        """Raise KitError if it is missing or damaged.

        A model is fetched if the machine is online.
        """
        if self.model:
            fetch(self.name, self.model)
        if problem := self.problem():
            missing = "" if self.model or self.path.is_file() else "is missing; "
            raise KitError(f"{self.place}: {missing}{problem}")


class Needing(OfKind):
    """Settings that may name published files."""

    @property
    def licence(self) -> str:
        """Licence of the published weights, as their authors state it; "": not recorded here."""
        return ""

    def needs(self) -> list[Need]:
        """List the published files and models that the settings name."""
        return []

    def require_files(self) -> None:
        """Raise KitError for a missing or damaged file."""
        for need in self.needs():
            need.require()

    def weight_files(self) -> dict[str, Path]:
        """Return the path of each published file by its setting.

        Text models are left out, which exports contain.
        """
        return {need.setting: need.path for need in self.needs() if need.model != "text model"}


class ExpertSettings(Needing):
    """Settings of a frozen source of frames in a recipe."""

    modules: ClassVar = KINDS

    resampling: Resampling = "soxr_hq"  # of files with another sample rate; papers of 2022: kaiser_best_0.2

    version: ClassVar[int] = 1  # raise it if the same settings give other frames, so that new banks are used
    dtype: ClassVar[str] = "float16"  # of stored frames: float16, float32, or int16
    computed: ClassVar[bool] = True  # whether frames are computed from audio and cover the whole clip
    reads_clips: ClassVar[bool] = True  # whether a clip's file is read

    @property
    @abstractmethod
    def rate(self) -> int:
        """Sample rate of the input waves, in Hz."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """Number of values in a frame."""

    @property
    @abstractmethod
    def frames_per_second(self) -> float:
        """Frames per second of audio."""

    @property
    def first_centre(self) -> float:
        """Centre of a clip's first frame, in seconds."""
        return 0.5 / self.frames_per_second

    @property
    def frame_description(self) -> str:
        """Size and rate of the frames, for `check`."""
        return f"{self.dim}-d, {self.frames_per_second:.2f} frames/s at {self.rate} Hz"

    def count_parameters(self) -> int:
        """Return the number of frozen parameters."""
        return 0

    @property
    def pretrained(self) -> str | None:
        """Name of the model that computed stored frames, if any."""
        return None

    def file_fault(self, clip: Clip) -> str | None:
        """Return why a clip's file does not fit the settings."""
        return None

    def read(self, path: str) -> np.ndarray:
        """Read the wave of a clip's audio file.

        Returns:
            (N,) float32, mono.

        Raises:
            AudioError: The file cannot be read.
        """
        return read_audio(path, self.rate, self.resampling)

    @abstractmethod
    def load(self, device: Device) -> Frames:
        """Return the function from waves to frames."""

    def checksums(self) -> dict[str, str]:
        """Return the sha256 of each weight file by setting.

        Raises:
            KitError: A file is missing.
        """
        self.require_files()
        return {name: file_sha256(path) for name, path in self.weight_files().items()}

    def identity(self) -> dict[str, Any]:
        """Return what determines the frames: settings, version, checksums of weights.

        Paths of weights are left out.
        """
        settings = self.model_dump(exclude=set(self.weight_files()))
        return settings | {"version": self.version, "sha256": self.checksums()}

    def bank_name(self) -> str:
        """Name the folder of stored frames.

        The name depends on all that determines the frames.
        """
        text = json.dumps(self.identity(), sort_keys=True)
        return f"{self.kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def length_fault(clip: Clip, seconds: float, hop: float, spare: float = 0.0) -> str | None:
    """Return why frames do not fit a clip's length.

    Such frames give wrong times of moments.

    Args:
        seconds: Length of the frames.
        hop: Seconds from one frame to the next.
        spare: Share of the clip by which both lengths may differ.
    """
    if not clip.seconds or abs(seconds - clip.seconds) <= max(LENGTH_TOLERANCE + hop, spare * clip.seconds):
        return None
    said = f"{clip.path}: the frames last {seconds:g} s, but the recording lasts {clip.seconds:g} s in the manifest"
    return f"{said}; replace the file, or correct the manifest or `hop_seconds`"


def common_fault(expert: ExpertSettings, clips: Sequence[Clip]) -> str | None:
    """Return a fault that the settings cause, not a clip.

    Some clips are checked. It is the settings' fault if no file fits them, or if an embedding is missing.
    """
    some = clips[:: math.ceil(len(clips) / READ_FILES) or 1]
    checked = [expert.file_fault(clip) for clip in some if Path(clip.path).exists() or not expert.reads_clips]
    faults = [fault for fault in checked if fault]
    if not faults or (expert.reads_clips and not 1 < len(faults) == len(checked)):
        return None
    return f"{len(faults)} of {len(checked)} checked clips do not fit; the first fault is: {faults[0]}"

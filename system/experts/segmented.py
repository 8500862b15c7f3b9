"""Frozen networks for segments.

Frozen networks that process segments of a fixed length, with one frame or several frames per segment.
"""

from abc import abstractmethod
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from pydantic import Field

from data_tools.errors import KitError
from system.experts.base import Device, ExpertSettings, Frames

if TYPE_CHECKING:
    from system.networks.segment import SegmentNetwork

Network: TypeAlias = "SegmentNetwork"  # this alias does not import torch

SEGMENTS_AT_ONCE = {"cpu": 4, "cuda": 64}


class SegmentExpert(ExpertSettings):
    """Frames (T, D) of consecutive segments of `segment_seconds` without overlap; silence fills the last segment.

    With output `clip`, the network computes one frame per segment. With output `frames`, it computes several frames
    per segment; frames that begin after the clip's end are dropped.
    """

    segment_seconds: float = Field(gt=0.02)  # length of a segment; a shorter rest is padded with silence
    output: Literal["clip", "frames"]  # one vector per segment, or all of its frames

    @property
    @abstractmethod
    def limits(self) -> tuple[float, float]:
        """The shortest and the longest segment that the network accepts, in seconds."""

    @property
    @abstractmethod
    def frame_rate_in_segment(self) -> float:
        """Number of frames per second of audio within a segment."""

    @property
    def frames_per_second(self) -> float:
        """Number of frames per second of audio."""
        return 1 / self.segment_seconds if self.output == "clip" else self.frame_rate_in_segment

    @abstractmethod
    def load_network(self) -> Network:
        """Build the network with its published weights. Imports torch."""

    def load(self, device: Device) -> Frames:
        """Return a function that computes the frames of waves on a device."""
        import torch

        from system.compute.device import suited_to
        from system.experts.network import apply_by_length, exact_arithmetic

        shortest, longest = self.limits
        if not shortest <= self.segment_seconds <= longest:
            raise KitError(
                f"expert {self.kind}: segment_seconds must be from {shortest} to {longest} s, not "
                f"{self.segment_seconds}; correct it in the recipe"
            )
        network = self.load_network().eval().requires_grad_(False).to(device)
        size, at_once = round(self.segment_seconds * self.rate), suited_to(device, SEGMENTS_AT_ONCE)

        @exact_arithmetic()
        def compute_frames(segments: np.ndarray) -> np.ndarray:
            """Compute the frames of segments of equal length.

            n segments of N samples (n, N) -> T frames of D values per segment (n, T, D).
            """
            waves = torch.from_numpy(np.pad(segments, ((0, 0), (0, size - segments.shape[1])))).to(device)
            lengths = torch.full((len(segments),), segments.shape[1], device=device)
            if self.output == "clip":
                outputs = network(waves, lengths)[:, None]
            else:
                frames, counts = network.frames(waves, lengths)
                outputs = frames[:, : int(counts[0])]  # equal lengths give equal counts
            result: np.ndarray = outputs.float().cpu().numpy()
            return result

        def compute_all_frames(waves: list[np.ndarray]) -> list[np.ndarray]:
            """Compute the frames of waves, segment by segment."""
            cut = [[wave[first : first + size] for first in range(0, len(wave), size)] for wave in waves]
            outputs = iter(apply_by_length([part for pieces in cut for part in pieces], at_once * size, compute_frames))
            return [np.concatenate([next(outputs) for _ in pieces]) for pieces in cut]

        return compute_all_frames

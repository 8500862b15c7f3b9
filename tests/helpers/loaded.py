"""The five experts with filled weights, each loaded once, and the errors of their frames."""

import functools
from pathlib import Path
from typing import Any

import filled
import numpy as np
import pytest
import torch

from system.experts import OpenL3, PannsCnn14, PannsResNet38, Vggish, VggSound
from system.experts.base import ExpertSettings, Frames
from system.networks.weights import Weights, read_weights

KINDS: dict[str, type[ExpertSettings]] = {
    "panns_cnn14_16k": PannsCnn14,
    "panns_resnet38": PannsResNet38,
    "openl3": OpenL3,
    "vggsound": VggSound,
    "vggish": Vggish,
}
# The narrow networks of test_audio_encoders.py are the same code in a hundredth of the time.
TIMELY = [pytest.param(kind, marks=pytest.mark.slow) if kind == "panns_resnet38" else kind for kind in KINDS]
INSIDE = {"panns_cnn14_16k": "model", "panns_resnet38": "model", "vggsound": "model_state_dict"}


@functools.cache
def weights(kind: str) -> Weights:
    return read_weights(Path(filled.files(kind)["weights"]), INSIDE.get(kind))


@functools.cache
def loaded(kind: str, **settings: Any) -> Frames:
    return KINDS[kind](**{"kind": kind, **filled.files(kind), **settings}).load(torch.device("cpu"))


def relative(found: Any, expected: np.ndarray) -> float:
    """Largest difference by the largest value."""
    assert np.shape(found) == expected.shape
    return float(np.abs(np.asarray(found) - expected).max() / np.abs(expected).max())


def largest(found: Any, expected: np.ndarray) -> float:
    """Largest difference."""
    assert np.shape(found) == expected.shape
    return float(np.abs(np.asarray(found) - expected).max())

"""Extraction against the layout the experts were published in (published.py; contiguous memory, clips but OpenL3's
whole), for filled weights and 30 s of sound. `python -m pytest -m benchmark -s`."""

import time
from typing import Any

import numpy as np
import published
import pytest
import torch
from loaded import KINDS, loaded, relative, weights

pytestmark = pytest.mark.benchmark

SECONDS = 30


@pytest.mark.parametrize(
    ("kind", "settings", "layout", "tolerance"),
    [
        ("openl3", {}, published.openl3, 5e-5),
        ("panns_cnn14_16k", {}, published.panns, 2e-5),
        ("vggsound", {}, published.resnet, 2e-5),
        ("vggish", {"output": "raw", "pca_weights": None}, published.vggish, 2e-5),
    ],
)
def test_speed_of_expert_frames_is_compared_with_the_published_code(
    kind: str, settings: dict[str, Any], layout: published.Published, tolerance: float
) -> None:
    frames_of = loaded(kind, **settings)
    noise = np.random.default_rng(0).normal(0, 0.1, SECONDS * KINDS[kind].model_construct().rate).astype(np.float32)
    ours, theirs = [], []
    with torch.inference_mode():
        for _ in range(2 if kind == "openl3" else 6):  # in turn, so that other work on the machine meets both
            began = time.perf_counter()
            found = frames_of([noise])[0]
            between = time.perf_counter()
            expected = layout(weights(kind), noise)
            ours.append(between - began)
            theirs.append(time.perf_counter() - between)
    assert relative(found, expected) < tolerance
    best, other = min(ours) / SECONDS, min(theirs) / SECONDS
    print(f"\n{kind}: {best:.4f} s a second of sound, as published {other:.4f} s, ratio {other / best:.2f}")

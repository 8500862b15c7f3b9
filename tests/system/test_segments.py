"""The encoder `segments`: cutting, pooling, training and evaluation, and the embeddings of the 2025 baseline."""

import math
from types import SimpleNamespace
from typing import Any

import filled
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from errors_of import relative
from threads import one_thread  # noqa: F401  a fixture

from data_tools.errors import KitError
from system.audio.mel import Stripes
from system.audio.network import outputs_of
from system.models.audio.segments import SegmentEncoder, Segments
from system.models.batch import Series

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = {"kind": "efficientat", "network": "mn04", "weights": None, "segment_seconds": 1, "output": "clip"}


def settings(network: dict[str, Any] | None = None, **changes: Any) -> Segments:
    values = {"kind": "segments", "network": SMALL | (network or {}), "trainable": True, "max_seconds": 30}
    return Segments.model_validate(values | changes)


def batch_of(*waves: np.ndarray) -> dict[str, Series]:
    lengths = [len(samples) for samples in waves]
    values = np.zeros((len(waves), max(lengths), 1), np.int16)
    for row, samples in zip(values, waves, strict=True):
        row[: len(samples), 0] = samples
    return {"waveform": Series(torch.from_numpy(values), torch.tensor(lengths))}


def noise(*seconds: float) -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [random.integers(-9000, 9000, round(one * 32_000)).astype(np.int16) for one in seconds]


def test_clips_are_cut_into_segments_as_computed_by_hand():
    layers, seen = settings().network.layers(), []

    def network(waves: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        seen.append((waves.tolist(), lengths.tolist()))
        return torch.zeros(len(waves), 384)

    def cut(segment: float | None, longest: float, width: int, *clips: list[float]) -> None:
        facts = SimpleNamespace(rate=1, segment_seconds=segment, longest=longest, seconds=(4.0, longest), output="clip")
        outputs_of(layers, facts, [torch.tensor(clip) for clip in clips], width)  # type: ignore[arg-type]

    layers.forward = network  # type: ignore[method-assign]
    cut(3, 3, 7, [1, 2, 3, 4, 5, 6, 7], [1, 2, 3], [1])
    cut(3, 3, 2, [1, 2], [1, 2], [1])
    cut(None, 600, 2, [1, 2], [1])
    cut(None, 600, 6, [1, 2, 3], [1])
    cut(None, 5, 6, [1, 2, 3, 4, 5, 6])
    assert seen == [
        ([[1, 2, 3], [4, 5, 6], [7, 0, 0], [1, 2, 3], [1, 0, 0]], [3, 3, 1, 3, 1]),
        ([[1, 2, 0], [1, 2, 0], [1, 0, 0]], [2, 2, 1]),
        ([[1, 2, 0, 0], [1, 0, 0, 0]], [2, 1]),
        ([[1, 2, 3, 0, 0, 0], [1, 0, 0, 0, 0, 0]], [3, 1]),
        ([[1, 2, 3, 4, 5], [6, 0, 0, 0, 0]], [5, 1]),
    ]


@pytest.mark.parametrize(("pooling", "expected"), [("mean", [[2, 4], [5, 5]]), ("seconds", [[1.5, 3], [5, 5]])])
def test_pooling_of_segments_matches_hand_values(pooling, expected):
    made = settings(pooling=pooling).build(4)
    vectors = torch.tensor([[1.0, 2.0], [3.0, 6.0], [5.0, 5.0]])
    made.size = 300
    found = [made._pool(torch.zeros(400), [*vectors[:2, None]]), made._pool(torch.zeros(7), [vectors[2:]])]
    assert torch.allclose(torch.stack(found), torch.tensor(expected, dtype=torch.float32))


def test_mean_of_segments_matches_the_original_code(goldens):
    content, made = dict(np.load(goldens / "losses_2025.npz")), settings().build(4)
    for values, seconds, *expected in zip(
        content["pool_segments"], content["pool_durations"], content["pool_out"], content["pool_out_2024"], strict=True
    ):
        count = math.ceil(seconds / 10)
        clip, vectors = torch.zeros(round(seconds * 32_000)), torch.from_numpy(values[:count]).float()
        made.size = 320_000
        found = made._pool(clip, [*vectors[:, None]])
        for one in expected:
            assert F.normalize(found, dim=0).numpy() == pytest.approx(one, abs=1e-6)


@pytest.mark.parametrize("segment_seconds", [1, None])
@pytest.mark.parametrize("output", ["clip", "frames"])
@torch.inference_mode()
def test_an_embedding_is_the_same_alone_and_in_a_batch(segment_seconds, output):
    made = settings({"segment_seconds": segment_seconds, "output": output}).build(8).eval()
    clips = noise(2.5, 0.05, 1)
    together = made(batch_of(*clips))
    for row, clip in enumerate(clips):
        alone = made(batch_of(clip)).values[0]
        assert (
            relative(together.values[row, : len(alone)] if output == "frames" else together.values[row], alone) < 1e-5
        )


@torch.inference_mode()
def test_frames_of_the_segments_are_joined():
    made = settings({"output": "frames"}, head="none").build(384).eval()
    clip = noise(2.5)[0]
    found = made(batch_of(clip))
    assert found.lengths.tolist() == [4 + 4 + 2]
    second = made(batch_of(clip[32_000:64_000])).values[0]
    assert relative(found.values[0, 4:8], second) < 1e-5


def test_frozen_networks_have_no_random_changes_and_wrong_sizes_are_named():
    audio = batch_of(*noise(1.2))
    made = settings({"weights": "x.pt", "edge_jitter": True}, trainable=False).build(4).train()
    assert torch.equal(made(audio).values, made(audio).values)
    assert not any(parameter.requires_grad for parameter in made.network.parameters())
    trained = settings({"edge_jitter": True}).build(4).train()
    assert not torch.equal(trained(audio).values, trained(audio).values)
    assert trained(audio).values.requires_grad
    with pytest.raises(KitError, match="head"):
        settings(head="none").build(12)


@pytest.mark.slow
@torch.inference_mode()
def test_embeddings_match_the_2025_baseline(goldens):
    golden = dict(np.load(goldens / "passt.npz"))
    network = {"kind": "passt", "network": "s16", "segment_seconds": 10, "output": "clip"}
    values = {"kind": "segments", "network": network | filled.files("passt"), "trainable": True, "max_seconds": 30}
    made = SegmentEncoder(Segments.model_validate(values), 1024).eval()
    made.load_pretrained()
    for name, shape in (("weight", (1024, 768)), ("bias", (1024,))):
        key = f"audio_projection.{name}"
        getattr(made.head[0], name).copy_(torch.from_numpy(filled.fill(key, {key: shape})))
    a, b = golden["A_wave_int16"], golden["B_wave_int16"]
    clips = [a, np.concatenate([b, a]), np.concatenate([a, a[::-1], b])]
    assert [len(clip) / 32_000 for clip in clips] == golden["d25_durations"].tolist()
    embedded = F.normalize(made(batch_of(*clips)).values)
    assert relative(embedded, golden["d25_audio_embeddings"]) < 2e-5


def test_stripes_mask_columns_and_bands_of_every_clip_at_random():
    settings = Stripes(time=2, time_width=64, bands=2, band_width=8)
    columns = torch.ones(400, 1, 64, 200)
    silent = (settings.mask(columns, 0.0) == 0)[:, 0]
    in_time, in_bands = silent.all(1), silent.all(2)
    assert torch.equal(silent, in_time[:, None] | in_bands[:, :, None])
    assert 63 < in_time.sum(1).max() <= 2 * 63
    assert 7 < in_bands.sum(1).max() <= 2 * 7
    assert in_time.sum(1).float().mean() == pytest.approx(2 * 31.5 * 0.93, rel=0.1)  # 7 % of two stripes overlap
    assert in_time.float().mean(0)[40:160].min() > 0.2, "stripes come anywhere"
    assert len({tuple(row) for row in in_time.tolist()}) > 390, "every clip has its own"
    one = settings.model_copy(update={"time": 1, "bands": 0})
    assert one.mask(columns, 0.0)[:, 0, 0].diff(dim=1).abs().sum(1).max() <= 2, "a stripe is one piece"
    few = settings.model_copy(update={"time": 1, "time_width": 3, "bands": 0})
    left_out = few.mask(torch.ones(999, 1, 64, 5), 0.0)[:, 0, 0].eq(0).sum(0)
    assert (left_out[:4] > 50).all()
    assert left_out[4] == 0, "torchlibrosa never takes the last column"
    assert (one.mask(torch.ones(99, 1, 64, 5), 0.0).mean((1, 2, 3)) == 0).any(), "all of a short clip"

"""The encoder `segments`: cutting, pooling, random changes, weights of files, and the 2025 baseline's embeddings."""

import math
from types import SimpleNamespace
from typing import Any

import filled
import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from errors_of import relative
from threads import one_thread  # noqa: F401  a fixture
from torch import nn

from data_tools.errors import KitError
from system.audio.mel import Stripes
from system.audio.network import fast, outputs_of
from system.audio.panns import Panns
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
    seen: list[Any] = []

    def network(waves: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        seen.append((waves.tolist(), lengths.tolist()))
        return torch.zeros(len(waves), 384)

    def cut(segment: float | None, longest: float, width: int, *clips: list[float]) -> None:
        facts = SimpleNamespace(rate=1, segment_seconds=segment, longest=longest, seconds=(4.0, longest), output="clip")
        outputs_of(network, facts, [torch.tensor(clip) for clip in clips], width)  # type: ignore[arg-type]

    network.pads_by_itself = False  # type: ignore[attr-defined]
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


def test_pooling_of_segments_matches_hand_values_and_the_original_code(goldens):
    made = settings(pooling="seconds").build(4)
    made.size = 300
    assert made._pool(torch.zeros(400), [torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 6.0]])]).tolist() == [1.5, 3]
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


@pytest.mark.parametrize(("segment_seconds", "output"), [(1, "frames"), (None, "clip")])
@torch.inference_mode()
def test_an_embedding_is_the_same_alone_and_in_a_batch(segment_seconds, output):
    made = settings({"segment_seconds": segment_seconds, "output": output}, head="none").build(384).eval()
    clips = noise(2.5, 0.05, 1)
    together = made(batch_of(*clips))
    for row, clip in enumerate(clips):
        alone = made(batch_of(clip)).values[0]
        own = together.values[row, : len(alone)] if output == "frames" else together.values[row]
        assert relative(own, alone) < 1e-5
    whole = made.network.frames(torch.from_numpy(clips[2] / np.float32(32_768))[None], torch.tensor([32_000]))[0][0]
    if output == "clip":
        assert relative(together.values[2], whole.mean(0)) < 1e-5
    else:
        assert together.lengths[0] == 4 + 4 + 2, "the frames of the segments are joined"
        second = made(batch_of(clips[0][32_000:64_000])).values[0]
        assert relative(together.values[0, 4:8], second) < 1e-5


def test_random_changes_and_weights_of_a_network_depend_on_whether_it_is_trained():
    """Cached gradients embed a part twice: stripes, edges and dropout must come again."""
    stripes = {"time": 2, "time_width": 16, "bands": 2, "band_width": 8}
    audio, changes = batch_of(*noise(1.2, 0.7)), {"weights": "x.pt", "edge_jitter": True, "stripes": stripes}
    for trainable in (False, True):
        made = settings(changes, trainable=trainable).build(4).train()
        norm = next(one for one in made.network.modules() if isinstance(one, nn.BatchNorm2d))
        before, state = norm.running_mean.clone(), torch.get_rng_state()
        found = made(audio).values
        assert torch.equal(made(audio).values, found) != trainable
        torch.set_rng_state(state)
        assert torch.equal(made(audio).values, found)
        found.sum().backward()
        assert {one.grad is not None for one in made.network.parameters()} == {trainable}
        assert all(one.grad is not None for one in made.head.parameters())
        assert torch.equal(norm.running_mean, before) != trainable
    with pytest.raises(KitError, match="head"):
        settings(head="none").build(12)


# PANNs


@pytest.fixture
def network(monkeypatch):
    """A narrow Cnn14 with batch norms as after training."""
    tiny.narrowed(monkeypatch)
    torch.manual_seed(1)
    made = Panns(kind="panns", network="cnn14_16k", weights=None, output="clip").layers()
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = 0.1 * torch.randn(module.num_features)
            module.running_var = 0.5 + torch.rand(module.num_features)
            nn.init.uniform_(module.weight, 0.5, 1.5)
    return made.eval()


@torch.inference_mode()
def test_poolings_of_panns_match_numpy_and_folded_batch_norms_give_the_same_frames(network):
    signal, lengths = torch.randn(2, 16_000), torch.tensor([16_000, 8_000])
    mean, counts = network.frames(signal, lengths)
    maps = network.maps(network.bn0(network.log_mel(signal))[:, None].transpose(2, 3))
    assert torch.allclose(mean, maps.mean(3).transpose(1, 2), atol=1e-6)
    assert counts.tolist() == [3, 1]
    own = [frames[:count] for frames, count in zip(mean, counts.tolist(), strict=True)]
    for how in ("mean", "max", "max_mean"):
        network.settings = network.settings.model_copy(update={"time_pooling": how})
        expected = [{"mean": x.mean(0), "max": x.amax(0), "max_mean": x.mean(0) + x.amax(0)}[how] for x in own]
        assert torch.allclose(network(signal, lengths), torch.stack(expected), atol=1e-6)
    network.settings = network.settings.model_copy(update={"frequency_pooling": "max_mean"})
    expected = (maps.mean(3) + maps.amax(3)).transpose(1, 2)
    assert torch.allclose(network.frames(signal, lengths)[0], expected, atol=1e-6)
    fast(network)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    assert torch.allclose(network.frames(signal, lengths)[0], expected, atol=1e-5)


def test_missing_and_wrong_published_weights_are_refused(network, tmp_path):
    path = tmp_path / "Cnn14_16k_mAP=0.438.pth"
    published = Panns(kind="panns", network="cnn14_16k", weights=str(path), output="clip")
    with pytest.raises(KitError, match="missing"):
        published.load_into(network)
    state = {name: value + 1 for name, value in network.state_dict().items()}
    torch.save({"model": state | {"fc1.weight": torch.zeros(3)}, "iteration": 3}, path)
    published.load_into(network)
    for name, value in network.state_dict().items():
        assert name.endswith("num_batches_tracked") or torch.equal(value, state[name]), name
    without = {name: value for name, value in state.items() if name != "bn0.bias"}
    for content, word in (
        ({"model": without}, "bn0.bias"),
        ({"model": state | {"conv_block1.conv1.weight": torch.zeros(2, 2)}}, "conv_block1.conv1.weight"),
        (None, "damaged"),
    ):
        torch.save(content, path) if content else path.write_bytes(b"<html>")
        with pytest.raises(KitError, match=word):
            published.load_into(network)


@pytest.mark.slow
@torch.inference_mode()
def test_embeddings_match_the_2025_baseline(goldens):
    golden = dict(np.load(goldens / "passt.npz"))
    network = {"kind": "passt", "network": "s16", "segment_seconds": 10, "output": "clip"}
    network["weights"] = str(filled.files("passt")[0])
    values = {"kind": "segments", "network": network, "trainable": True, "max_seconds": 30}
    made = SegmentEncoder(Segments.model_validate(values), 1024).eval()
    made.load_pretrained()
    projection = filled.tensors("projection")
    made.head[0].load_state_dict({key.removeprefix("audio_projection."): one for key, one in projection.items()})
    a, b = golden["A_wave_int16"], golden["B_wave_int16"]
    clips = [a, np.concatenate([b, a]), np.concatenate([a, a[::-1], b])]
    assert [len(clip) / 32_000 for clip in clips] == golden["d25_durations"].tolist()
    embedded = F.normalize(made(batch_of(*clips)).values)
    assert relative(embedded, golden["d25_audio_embeddings"]) < 2e-5


def test_stripes_mask_columns_and_bands_of_every_clip_at_random():
    settings = Stripes(time=2, time_width=64, bands=2, band_width=8)
    silent = (settings.mask(torch.ones(400, 1, 64, 200), 0.0) == 0)[:, 0]
    in_time, in_bands = silent.all(1), silent.all(2)
    assert torch.equal(silent, in_time[:, None] | in_bands[:, :, None])
    assert 63 < in_time.sum(1).max() <= 2 * 63
    assert 7 < in_bands.sum(1).max() <= 2 * 7
    assert in_time.sum(1).float().mean() == pytest.approx(2 * 31.5 * 0.93, rel=0.1)  # 7 % of two stripes overlap
    assert len({tuple(row) for row in in_time.tolist()}) > 390, "every clip has its own"

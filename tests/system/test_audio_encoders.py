"""Audio encoders: their input, their random draws, and the effects of padding and of other clips in a batch."""

from typing import Any

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from heard import crnn, expert, frames, series, slaney
from threads import one_thread  # noqa: F401  a fixture
from torch import nn

from data_tools.audio import read_audio
from data_tools.errors import KitError
from data_tools.manifest import Clip
from system.audio.logmel import SILENCE, LogMelSlaney
from system.audio.network import fast, pooled_over_time
from system.audio.stored import Waveform
from system.batches.items import Item
from system.batches.loader import collate
from system.features.bank import Bank
from system.features.extract import Features
from system.models.audio.crnn import MIN_FRAMES, CrnnEncoder, Gru, GruEncoder
from system.models.audio.heads import PooledMlp
from system.models.audio.segments import SegmentEncoder, Segments
from system.models.batch import Series

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
SECOND = 16_000


# pooling and two layers


def test_pooling_and_the_mlp_behind_it_match_hand_values():
    values = torch.tensor([[[1.0, -4.0], [3.0, -2.0], [torch.nan, torch.inf]], [[2.0, 2.0], [4.0, 0.0], [0.0, 7.0]]])
    lengths = torch.tensor([2, 3])
    for pooling, expected in (
        ("mean", [[2, -3], [2, 3]]),
        ("max", [[3, -2], [4, 7]]),
        ("max_mean", [[5, -5], [6, 10]]),
    ):
        assert pooled_over_time(values, lengths, pooling).tolist() == expected, pooling  # type: ignore[arg-type]
    half = pooled_over_time(torch.full((1, 3000, 1), 60.0, dtype=torch.float16), torch.tensor([3000]), "mean")
    assert half.item() == 60, "a sum in 16 bits would be infinite"
    settings = {"kind": "pooled_mlp", "experts": expert(8), "pooling": "max_mean", "hidden": 5, "dropout": 0.5}
    encoder = PooledMlp.model_validate(settings).build(3).eval()
    values, lengths = torch.randn(2, 7, 8).half(), torch.tensor([7, 4])
    values[1, 4:] = torch.nan
    found = encoder({"frozen": Series(values, lengths)}).values
    own = values[1, :4].float()
    first, _, last = encoder.mlp
    expected = last(first(own.mean(0) + own.amax(0)).relu())
    assert torch.allclose(found[1], expected, atol=1e-6)
    assert not torch.equal(encoder.train()({"frozen": Series(values, lengths)}).values, found), "no dropout"
    assert encoder.parts().keys() == {"mlp"}


# waves and features made from them


def test_waveforms_of_16_bit_files_are_stored_exactly_and_others_rounded_to_16_bits():
    frames = Waveform(kind="waveform", sample_rate=32_000).load(CPU)
    exact = np.array([-32_768, -32_767, -1, 0, 1, 16_385, 32_767])
    (kept,) = frames([(exact / 32_768).astype(np.float32)])
    assert kept.dtype == np.int16
    assert kept[:, 0].tolist() == exact.tolist()
    (loud,) = frames([np.array([-3.0, 1.0, 3.0], np.float32)])
    assert loud[:, 0].tolist() == [-32_768, 32_767, 32_767]
    noise = np.random.default_rng(0).uniform(-0.99, 0.99, 9999).astype(np.float32)
    assert np.abs(frames([noise])[0][:, 0] / 32_768 - noise).max() <= 0.5 / 32_768 + 1e-9


def test_batch_frames_have_the_dtype_of_their_bank(tmp_path):
    series = {"a": np.arange(-3, 2)[:, None], "b": 30_000 + np.arange(2)[:, None]}
    for dtype in ("int16", "float32", "float16"):
        bank = Bank(tmp_path / dtype, 1, dtype, {})
        assert len(tiny.store_all(bank, series.items())) == 2
        features = Features({"waveform": bank}, {"one": "a", "other": "b"})

        items = [Item(Clip(id=name, path="none", captions=[]), ()) for name in ("other", "one")]
        padded = collate(items, features).audio["waveform"]
        assert str(padded.values.dtype) == f"torch.{dtype}"
        expected = np.array([[30_000, 30_001, 0, 0, 0], [-3, -2, -1, 0, 1]], dtype)
        assert padded.values[..., 0].tolist() == expected.tolist()
        assert padded.lengths.tolist() == [2, 5]


def test_log_mel_frequencies_that_do_not_increase_are_refused():
    settings = {"kind": "logmel_slaney", "sample_rate": 16_000, "bands": 64, "window_seconds": 0.04}
    for lowest, highest in ((500, 400), (12, 8001)):
        with pytest.raises(ValueError, match="lowest"):
            LogMelSlaney.model_validate(settings | {"hop_seconds": 0.02, "lowest": lowest, "highest": highest})


# PANNs


def panns(**changes: Any) -> SegmentEncoder:
    network = {"kind": "panns", "network": "cnn14_16k", "weights": None, "output": "clip"} | changes
    torch.manual_seed(1)
    settings = {"kind": "segments", "network": network, "trainable": True, "max_seconds": 2, "hidden": 5}
    return Segments.model_validate(settings).build(6)


@pytest.fixture
def narrow(monkeypatch):
    tiny.narrowed(monkeypatch)


def with_norms(network: nn.Module) -> nn.Module:
    """Set batch norms as after training."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = 0.1 * torch.randn(module.num_features)
            module.running_var = 0.5 + torch.rand(module.num_features)
            nn.init.uniform_(module.weight, 0.5, 1.5)
    return network.eval()


def waves(*seconds: float) -> list[torch.Tensor]:
    """Tones in noise that swell to their ends, another pitch a clip."""
    draw = np.random.default_rng(3)
    clips = []
    for n, length in enumerate(seconds):
        t = np.arange(round(length * SECOND)) / SECOND
        clip = 20_000 * t / length * np.sin(2 * np.pi * 300 * 2**n * t) + draw.normal(0, 200, len(t))
        clips.append(torch.from_numpy(clip.astype(np.int16)[:, None]))
    return clips


@torch.inference_mode()
def test_poolings_of_panns_match_numpy_and_folded_batch_norms_give_the_same_frames(narrow):
    signal, lengths = torch.randn(2, SECOND), torch.tensor([SECOND, SECOND // 2])
    made = with_norms(panns().network)
    mean, counts = made.frames(signal, lengths)
    made.settings = made.settings.model_copy(update={"frequency_pooling": "max_mean"})
    maps = made.maps(made.bn0(made.log_mel(signal))[:, None].transpose(2, 3))
    assert torch.allclose(made.frames(signal, lengths)[0], (maps.mean(3) + maps.amax(3)).transpose(1, 2), atol=1e-6)
    assert torch.allclose(mean, maps.mean(3).transpose(1, 2), atol=1e-6)
    assert counts.tolist() == [3, 1]
    for how, expected in (("mean", maps.mean(2)), ("max", maps.amax(2)), ("max_mean", maps.mean(2) + maps.amax(2))):
        made.settings = made.settings.model_copy(update={"frequency_pooling": "mean", "time_pooling": how})
        own = [frames[:count] for frames, count in zip(mean, counts.tolist(), strict=True)]
        expected = [{"mean": x.mean(0), "max": x.amax(0), "max_mean": x.mean(0) + x.amax(0)}[how] for x in own]
        assert torch.allclose(made(signal, lengths), torch.stack(expected), atol=1e-6)
    made, signal = with_norms(panns().network), (torch.randn(1, SECOND), torch.tensor([SECOND]))
    expected = made.frames(*signal)[0]
    fast(made)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in made.modules())
    assert torch.allclose(made.frames(*signal)[0], expected, atol=1e-5)
    encoder, (clip,) = panns().eval(), waves(0.1)
    alone = encoder({"waveform": series([clip])}).values
    filled = F.pad(clip, (0, 0, 0, round(0.31 * SECOND) - len(clip)))
    assert torch.equal(encoder({"waveform": series([filled])}).values, alone)


def test_frozen_panns_keeps_its_weights_and_a_trained_one_does_not(narrow):
    audio = {"waveform": series(waves(1.0, 1.5))}
    for trainable in (False, True):
        encoder = panns(weights="as_published.pth")
        encoder.settings = encoder.settings.model_copy(update={"trainable": trainable})
        encoder.network.requires_grad_(trainable)
        before = encoder.network.bn0.running_mean.clone()
        encoder.train()(audio).values.sum().backward()
        assert all((one.grad is not None) == trainable for one in encoder.network.parameters())
        assert all(one.grad is not None for one in encoder.head.parameters())
        assert torch.equal(encoder.network.bn0.running_mean, before) != trainable


def test_panns_training_embedding_repeats_with_the_same_random_state(narrow):
    """Cached gradients embed a part twice: crops, stripes and dropout must come again."""
    stripes = {"time": 2, "time_width": 16, "bands": 2, "band_width": 8}
    encoder = panns(dropout=0.2, stripes=stripes).train()
    audio = {"waveform": series(waves(3.0, 1.0))}
    state = torch.get_rng_state()
    first = encoder(audio).values
    assert not torch.equal(encoder(audio).values, first)
    torch.set_rng_state(state)
    assert torch.equal(encoder(audio).values, first)


def test_missing_and_wrong_published_weights_are_refused(narrow, tmp_path):
    path = tmp_path / "Cnn14_16k_mAP=0.438.pth"
    encoder = panns(weights=str(path))
    with pytest.raises(KitError, match="missing"):
        encoder.load_pretrained()
    state = {name: value + 1 for name, value in encoder.network.state_dict().items()}
    torch.save({"model": state | {"fc1.weight": torch.zeros(3)}, "iteration": 3}, path)
    encoder.load_pretrained()
    for name, value in encoder.network.state_dict().items():
        assert name.endswith("num_batches_tracked") or torch.equal(value, state[name]), name
    other = state | {"conv_block1.conv1.weight": torch.zeros(2, 2)}
    for content, word in (
        ({name: value for name, value in state.items() if name != "bn0.bias"}, "bn0.bias"),
        (other, "conv_block1.conv1.weight"),
    ):
        torch.save({"model": content}, path)
        with pytest.raises(KitError, match=word):
            encoder.load_pretrained()
    path.write_bytes(b"<html>")
    with pytest.raises(KitError, match="damaged"):
        encoder.load_pretrained()
    panns(weights=None).load_pretrained()


# with 16-bit numbers


@torch.inference_mode()
def test_panns_embeddings_of_recordings_are_finite_and_distinct(shared, narrow):
    encoder, paths = panns().eval(), sorted((shared / "data/esc10/audio").iterdir())[:3]
    kind = encoder.settings.experts["waveform"]
    clips = [torch.from_numpy(own) for own in kind.load(CPU)([read_audio(path, kind.rate) for path in paths])]
    found = encoder({"waveform": series(clips)}).values
    assert found.isfinite().all()
    assert torch.cdist(found, found)[0, 1:].min() > 1e-4


def test_crnn_size_and_initial_weights_match_original_code():
    encoder = crnn(hidden=150)
    assert sum(parameter.numel() for parameter in encoder.parameters() if parameter.requires_grad) == 732_354
    second = encoder.cnn[8].weight
    assert float(second.detach().std()) == pytest.approx((2 / (128 * 9)) ** 0.5, rel=0.02)
    assert encoder.gru.input_size == 128
    assert crnn(experts=slaney(bands=128)).gru.input_size == 256


def embedded(encoder: CrnnEncoder | GruEncoder, values: Series, expert: str = "logmel") -> list[torch.Tensor]:
    """Embed every clip separately."""
    found = encoder({expert: values})
    if found.lengths is None:
        return list(found.values)
    return [own[:length] for own, length in zip(found.values, found.lengths.tolist(), strict=True)]


@pytest.mark.parametrize("embedding", ["frames", "mean"])
def test_evaluation_of_a_clip_is_independent_of_padding_and_other_clips(embedding):
    clips = frames(30, 11, 4, 47, 3, 1, 11)
    tight = series(clips)
    wide = Series(F.pad(tight.values, (0, 0, 0, 9)), tight.lengths)
    for row, length in enumerate(tight.lengths.tolist()):
        wide.values[row, length:] = 7.0
    encoder = crnn(embedding=embedding).eval()
    with torch.inference_mode():
        for clip, own in zip(clips, embedded(encoder, wide), strict=True):
            assert torch.allclose(embedded(encoder, series([clip]))[0], own, atol=1e-5)
            assert torch.allclose(own.norm(dim=-1), torch.ones(own.shape[:-1]))
            assert embedding == "mean" or len(own) == max(len(clip), MIN_FRAMES)


def test_crnn_that_includes_padding_in_training_matches_public_code():
    encoder = crnn(embedding="mean").train()
    values = series(frames(30, 11, 47))
    found = encoder({"logmel": values}).values
    with torch.no_grad():
        maps = encoder.cnn(values.values[:, None])
        hidden, _ = encoder.gru(maps.transpose(1, 2).flatten(2))
        whole = F.interpolate(hidden.transpose(1, 2), 47, mode="linear", align_corners=False).transpose(1, 2)
        assert torch.allclose(found, F.normalize(whole.mean(1), dim=-1), atol=1e-5)
        given = crnn().train()({"logmel": values})
        assert given.lengths.tolist() == [47, 47, 47]
        assert torch.allclose(given.values, F.normalize(whole, dim=-1), atol=1e-5)
        evaluated = crnn().eval()({"logmel": values})
        assert evaluated.lengths.tolist() == [30, 11, 47]


@torch.inference_mode()
def test_clips_under_four_frames_are_padded_with_silence():
    encoder = crnn().eval()
    (clip,) = frames(2)
    silence = torch.full((2, 64), SILENCE)
    assert torch.equal(embedded(encoder, series([clip]))[0], embedded(encoder, series([torch.cat([clip, silence])]))[0])


@pytest.mark.parametrize("embedding", ["frames", "mean"])
def test_gru_encoder_output_matches_a_direct_computation(embedding):
    settings = {"kind": "gru", "experts": expert(8), "width": 5, "hidden": 4, "dropout": 0.0, "embedding": embedding}
    encoder = Gru.model_validate(settings).build(8)
    clips = frames(5, 1, 8, dim=8)
    padded = series(clips)
    padded.values[0, 5:] = 9.0
    for clip, own in zip(clips, embedded(encoder, padded, "frozen"), strict=True):
        hidden = F.normalize(encoder.gru(encoder.linear(clip))[0], dim=-1)
        whole = encoder.gru(encoder.linear(clip))[0].mean(0)
        expected = hidden if embedding == "frames" else F.normalize(whole, dim=-1)
        assert torch.allclose(own, expected, atol=1e-5)
    assert encoder.parts().keys() == {"linear", "gru"}

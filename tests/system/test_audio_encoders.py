"""Audio encoders: their input, their random draws, and the effects of padding and of other clips in a batch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from heard import crnn, expert, frames, series
from threads import one_thread  # noqa: F401  a fixture

from data_tools.audio import read_audio
from data_tools.errors import KitError
from data_tools.manifest import Clip
from system.batches.items import Item
from system.batches.loader import collate
from system.experts import LogMelSlaney, Waveform
from system.experts.network import compute_in_pieces
from system.features.bank import Bank
from system.features.extract import Features
from system.models.audio import Panns, PooledMlp
from system.models.audio import panns_encoder as panns
from system.models.audio.panns_encoder import PannsEncoder, spec_augment
from system.models.audio.segmented import SpecAugment
from system.models.batch import Series
from system.networks import panns as networks
from system.networks import published
from system.networks.augment import crop_longer_waves
from system.networks.frontend import LogMelFrontEnd
from system.networks.layers import pooled_over_time
from system.networks.panns import Cnn14, ResNet38, fold_batch_norms

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
SECOND = 32_000
WIDTH = 16  # of the narrow network's frames


# pooling and two layers


def test_mean_and_max_over_time_ignore_padding_and_match_hand_values() -> None:
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


def test_pooled_mlp_applies_dropout_and_two_layers() -> None:
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


def test_waveforms_of_16_bit_files_are_stored_exactly_and_others_rounded_to_16_bits() -> None:
    frames = Waveform(kind="waveform", sample_rate=32_000).load(CPU)
    exact = np.array([-32_768, -32_767, -1, 0, 1, 16_385, 32_767])
    (kept,) = frames([(exact / 32_768).astype(np.float32)])
    assert kept.dtype == np.int16
    assert kept[:, 0].tolist() == exact.tolist()
    (loud,) = frames([np.array([-3.0, 1.0, 3.0], np.float32)])
    assert loud[:, 0].tolist() == [-32_768, 32_767, 32_767]
    noise = np.random.default_rng(0).uniform(-0.99, 0.99, 9999).astype(np.float32)
    assert np.abs(frames([noise])[0][:, 0] / 32_768 - noise).max() <= 0.5 / 32_768 + 1e-9


def test_batch_frames_have_the_dtype_of_their_bank(tmp_path: Path) -> None:
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


def test_log_mel_frequencies_that_do_not_increase_are_refused() -> None:
    settings = {"kind": "logmel_slaney", "sample_rate": 16_000, "bands": 64, "window_seconds": 0.04}
    for lowest, highest in ((500, 400), (12, 8001)):
        with pytest.raises(ValueError, match=f"lowest is {lowest} Hz and highest {highest} Hz: lowest must"):
            LogMelSlaney.model_validate(settings | {"hop_seconds": 0.02, "lowest": lowest, "highest": highest})


def test_log_mel_front_end_computes_in_float32_under_autocast() -> None:
    waves = 0.1 * torch.randn(2, 9999)
    expected = LogMelFrontEnd()(waves)
    with torch.autocast("cpu", torch.bfloat16):
        found = LogMelFrontEnd()(waves)
    assert torch.equal(found, expected)


def test_random_crops_of_waves_begin_at_all_positions_and_keep_shorter_waves() -> None:
    waves = torch.arange(1, 41).expand(500, 40).contiguous().to(torch.int16)
    lengths = torch.tensor([40, 25, 10, 7, 11] * 100)
    waves = waves.masked_fill(torch.arange(40) >= lengths[:, None], 0)
    torch.manual_seed(0)
    parts, own = crop_longer_waves(waves, lengths, 10)
    assert parts.shape == (500, 10)
    assert parts.dtype == torch.int16
    assert own.tolist() == [10, 10, 10, 7, 10] * 100
    assert (parts[3::5, :7] == torch.arange(1, 8)).all()
    assert (parts[3::5, 7:] == 0).all()
    for kind, last in ((0, 31), (1, 16), (2, 1), (4, 2)):
        first = parts[kind::5, 0]
        assert (parts[kind::5] == first[:, None] + torch.arange(10)).all()
        assert first.min() >= 1
        assert first.max() <= last
        assert len(set(first.tolist())) > min(last, 20) * 0.7
    assert crop_longer_waves(waves, lengths, 40) == (waves, lengths)
    torch.manual_seed(0)
    assert torch.equal(crop_longer_waves(waves, lengths, 10)[0], parts)


def test_spec_augment_masks_random_stripes_of_every_clip() -> None:
    settings = SpecAugment(time_stripes=2, time_width=64, band_stripes=2, band_width=8)
    columns = torch.ones(400, 1, 200, 64)
    torch.manual_seed(0)
    found = spec_augment(columns, **settings.model_dump())
    assert found.shape == columns.shape
    assert set(found.unique().tolist()) == {0.0, 1.0}
    silent = (found == 0)[:, 0]
    in_time, in_bands = silent.all(2), silent.all(1)
    assert torch.equal(silent, in_time[:, :, None] | in_bands[:, None, :])
    assert 63 < in_time.sum(1).max() <= 2 * 63
    assert 7 < in_bands.sum(1).max() <= 2 * 7
    assert in_time.sum(1).float().mean() == pytest.approx(2 * 31.5 * 0.93, rel=0.1)  # 7 % of two stripes overlap
    assert in_time.float().mean(0)[40:160].min() > 0.2, "stripes come anywhere"
    assert len({tuple(row) for row in in_time.tolist()}) > 390, "every clip has its own"
    one = settings.model_copy(update={"time_stripes": 1, "band_stripes": 0})
    edges = spec_augment(columns, **one.model_dump())[:, 0, :, 0].diff(dim=1).abs().sum(1)
    assert edges.max() <= 2, "a stripe is one piece"
    few = settings.model_copy(update={"time_stripes": 1, "time_width": 3, "band_stripes": 0})
    left_out = spec_augment(torch.ones(999, 1, 5, 64), **few.model_dump())[:, 0, :, 0].eq(0).sum(0)
    assert (left_out[:4] > 100).all()
    assert left_out[4] == 0, "torchlibrosa never takes the last column"
    none = settings.model_copy(update={"time_stripes": 0, "band_stripes": 0})
    assert torch.equal(spec_augment(columns, **none.model_dump()), columns)
    short = spec_augment(torch.ones(99, 1, 5, 64), **one.model_dump())
    assert (short.mean((1, 2, 3)) == 0).any(), "stripes may take all of a short clip"
    torch.manual_seed(0)
    assert torch.equal(spec_augment(columns, **settings.model_dump()), found)


# PANNs, by a narrow network of the same making


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> Callable[..., PannsEncoder]:
    monkeypatch.setattr(networks, "RESNET38_STEM", 4)
    monkeypatch.setattr(networks, "RESNET38_LAYERS", ((4, 2), (8, 1), (8, 1), (12, 1)))
    monkeypatch.setattr(networks, "DIM", WIDTH)
    monkeypatch.setattr(panns, "DIM", WIDTH)

    def made(**changes: Any) -> PannsEncoder:
        stripes = {"time_stripes": 2, "time_width": 16, "band_stripes": 2, "band_width": 8}
        settings = tiny.panns(max_seconds=2, spec_augment=stripes) | changes
        torch.manual_seed(1)
        encoder = Panns.model_validate(settings).build(6)
        assert isinstance(encoder, PannsEncoder)
        for module in encoder.network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):  # as after training: no block is a mere shortcut
                module.running_mean = 0.1 * torch.randn(module.num_features)
                module.running_var = 0.5 + torch.rand(module.num_features)
                torch.nn.init.uniform_(module.weight, 0.5, 1.5)
        encoder.network.bn0.running_mean = torch.full((64,), -40.0)
        encoder.network.bn0.running_var = torch.full((64,), 300.0)
        return encoder

    return made


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
def test_clip_embedding_is_independent_of_other_clips_in_the_batch(narrow: Callable[..., PannsEncoder]) -> None:
    encoder = narrow().eval()
    clips = waves(1.0, 1.9, 1.0, 0.1, 0.31, 1.4, 0.00004)
    together = encoder({"waveform": series(clips)}).values
    assert together.isfinite().all()
    for clip, own in zip(clips, together, strict=True):
        assert torch.allclose(encoder({"waveform": series([clip])}).values[0], own, atol=1e-5)
        padded = encoder({"waveform": series([F.pad(clip, (0, 0, 0, SECOND))])}).values[0]
        assert (padded - own).abs().max() > 1e-3, "padding with silence must change the vector"
    assert torch.cdist(together, together).fill_diagonal_(1).min() > 3e-4, "all clips are one"


@torch.inference_mode()
def test_clips_under_one_frame_are_padded_with_silence(narrow: Callable[..., PannsEncoder]) -> None:
    encoder = narrow().eval()
    (clip,) = waves(0.1)
    filled = F.pad(clip, (0, 0, 0, published.SHORTEST - len(clip)))
    alone = encoder({"waveform": series([clip])}).values
    assert torch.equal(encoder({"waveform": series([filled])}).values, alone)
    longer = F.pad(clip, (0, 0, 0, 2 * published.SHORTEST))
    assert not torch.allclose(encoder({"waveform": series([longer])}).values, alone, atol=1e-3)


@pytest.mark.parametrize("kind", [ResNet38, Cnn14])
def test_panns_frame_depends_only_on_inputs_within_its_receptive_field(
    monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    """Find the input positions that change one frame of a network with positive weights only."""
    monkeypatch.setattr(networks, "RESNET38_STEM", 1)
    monkeypatch.setattr(networks, "RESNET38_LAYERS", ((1, 3), (1, 4), (1, 6), (1, 3)))
    monkeypatch.setattr(networks, "DIM", 1)
    monkeypatch.setattr(networks, "CNN14_CHANNELS", (1,) * 6)
    network = kind().double().eval()
    for parameter in network.parameters():
        torch.nn.init.constant_(parameter, 0.1)
    x = torch.rand(1, 1, 32 * 31, 64, dtype=torch.float64, requires_grad=True)
    whole = network(x)
    whole[0, 0, 15].sum().backward()
    seen = x.grad[0, 0].abs().sum(1).nonzero()[:, 0]
    to_either_side = max(32 * 15 - int(seen.min()), int(seen.max()) - (32 * 16 - 1))
    assert to_either_side == {4: 126, 10: 302}[network.reach]
    assert 32 * (network.reach - 1) < to_either_side <= 32 * network.reach
    assert torch.allclose(compute_in_pieces(network, x, 2, 32, network.reach, 2), whole, rtol=1e-12, atol=0)


@torch.inference_mode()
def test_panns_embedding_of_a_long_clip_computed_in_pieces_matches_one_pass(
    narrow: Callable[..., PannsEncoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = narrow().eval()
    clips = series(waves(9.0))
    whole = encoder({"waveform": clips}).values
    monkeypatch.setattr(panns, "PIECE", 3)
    assert torch.allclose(encoder({"waveform": clips}).values, whole, atol=1e-5)


def test_panns_network_with_folded_batch_norms_gives_the_same_output(narrow: Callable[..., PannsEncoder]) -> None:
    network = narrow().network.eval()
    x = torch.randn(1, 1, 70, 64)
    with torch.inference_mode():
        expected = network(x)
    fold_batch_norms(network)
    norms = [name for name, module in network.named_modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert not norms
    with torch.inference_mode():
        assert torch.allclose(network(x), expected, atol=1e-5)


def test_panns_training_uses_a_random_section_of_a_clip_and_pools_without_padding(
    narrow: Callable[..., PannsEncoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = narrow().train()
    heard = []
    monkeypatch.setattr(encoder.front_end, "forward", lambda waves: heard.append(waves) or LogMelFrontEnd()(waves))
    counted = []
    monkeypatch.setattr(
        panns,
        "pooled_over_time",
        lambda values, lengths, how: counted.append((values, lengths)) or pooled_over_time(values, lengths, how),
    )
    clips = waves(3.0, 1.0, 0.1)
    encoder({"waveform": series(clips)})
    (given,), ((frames, lengths),) = heard, counted
    assert given.shape == (3, 2 * SECOND)
    assert lengths.tolist() == [6, 3, 1]  # 201, 101 and 32 columns
    assert frames.shape == (3, 6, WIDTH)
    assert torch.equal(given[1, :SECOND], clips[1][:, 0] / 32_768)
    assert (given[1, SECOND:] == 0).all()
    first = int((clips[0].unfold(0, 8, 1)[:, 0] == given[0, :8] * 32_768).all(1).nonzero()[0])
    assert torch.equal(given[0] * 32_768, clips[0][first : first + 2 * SECOND, 0].float())
    assert 0 < first < SECOND


def test_frozen_network_keeps_published_weights_and_gets_no_gradients(narrow: Callable[..., PannsEncoder]) -> None:
    encoder = narrow(trainable=False, weights="as_published.pth").train()
    before = {name: value.clone() for name, value in encoder.network.state_dict().items()}
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        encoder({"waveform": series(waves(1.0, 1.5))}).values.sum().backward()
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in encoder.network.parameters())
    assert all(parameter.grad is not None for parameter in encoder.mlp.parameters())
    assert all(torch.equal(value, before[name]) for name, value in encoder.network.state_dict().items())
    assert all(tensor.ndim == 2 for tensor in kept), "a graph over the network is kept"
    assert encoder.mlp.training
    trained = narrow().train()
    trained({"waveform": series(waves(1.0, 1.5))}).values.sum().backward()
    assert all(parameter.grad is not None for parameter in trained.network.parameters())
    assert not torch.equal(trained.network.bn0.running_mean, encoder.network.bn0.running_mean)


def test_panns_training_embedding_repeats_with_the_same_random_state(narrow: Callable[..., PannsEncoder]) -> None:
    """Cached gradients embed a part twice: crops, stripes and dropout must come again."""
    encoder = narrow().train()
    clips = series(waves(3.0, 1.0))
    state = torch.get_rng_state()
    first = encoder({"waveform": clips}).values
    assert not torch.equal(encoder({"waveform": clips}).values, first)
    torch.set_rng_state(state)
    assert torch.equal(encoder({"waveform": clips}).values, first)


def test_missing_and_wrong_published_weights_are_refused(narrow: Callable[..., PannsEncoder], tmp_path: Path) -> None:
    path = tmp_path / "ResNet38_mAP=0.434.pth"
    encoder = narrow(weights=str(path))
    with pytest.raises(KitError, match=f"the weight file {path} is missing"):
        encoder.load_pretrained()
    state = {name: value + 1 for name, value in encoder.network.state_dict().items()}
    others = {"fc1.weight": torch.zeros(3), "spectrogram_extractor.stft.conv_real.weight": torch.zeros(2)}
    torch.save({"model": state | others, "iteration": 3}, path)
    encoder.load_pretrained()
    for name, value in encoder.network.state_dict().items():
        assert name.endswith("num_batches_tracked") or torch.equal(value, state[name]), name
    other = {**state, "resnet.layer2.0.conv1.weight": torch.zeros(2, 2)}
    for content, output in (
        ({"model": {name: value for name, value in state.items() if name != "bn0.bias"}}, "has no tensor bn0.bias"),
        (
            {"model": other},
            r"layer2\.0\.conv1\.weight has shape \(2, 2\), not \(8, 4, 3, 3\): the file is not the published",
        ),
        (state, "has no tensors under the key model: the file is not the published checkpoint"),
    ):
        torch.save(content, path)
        with pytest.raises(KitError, match=output):
            encoder.load_pretrained()
    path.write_bytes(b"<html>")
    with pytest.raises(KitError, match="truncated"):
        encoder.load_pretrained()
    narrow(weights=None).load_pretrained()


# GRUs


# with 16-bit numbers


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_embeddings_in_16_bits_on_gpu_match_float32(narrow: Callable[..., PannsEncoder], dtype: torch.dtype) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    for encoder, audio in (
        (narrow(dropout=0.0, spec_augment=None), {"waveform": series(waves(1.0, 1.5))}),
        (crnn(), {"logmel": series(frames(30, 11))}),
    ):
        expected = encoder.train()(audio).values
        moved = {name: Series(one.values.cuda(), one.lengths.cuda()) for name, one in audio.items()}
        with torch.autocast("cuda", dtype):
            found = encoder.cuda()(moved).values
        found.float().sum().backward()
        assert (found.float().cpu() - expected).abs().max() < 0.1 * expected.abs().max()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())


def test_panns_embeddings_of_recordings_are_finite_and_distinct(
    shared: Path, narrow: Callable[..., PannsEncoder]
) -> None:
    paths = sorted((shared / "data/esc10/audio").iterdir())[:3]
    (kind,) = Panns.model_validate(tiny.panns()).experts.values()
    clips = [torch.from_numpy(own) for own in kind.load(CPU)([read_audio(path, kind.rate) for path in paths])]
    with torch.inference_mode():
        found = narrow().eval()({"waveform": series(clips)}).values
    assert found.isfinite().all()
    assert torch.cdist(found, found)[0, 1:].min() > 1e-4

"""Experts against their goldens and definitions."""

import hashlib
from pathlib import Path

import filled
import numpy as np
import pytest
import soundfile
import tiny
import torch

from data_tools.errors import KitError
from system.experts import PannsCnn14, Vggish
from system.experts.audioset import cut_into_patches, log_mel
from system.experts.logmel import LogMel
from system.experts.network import apply_by_rows, compute_in_pieces, exact_arithmetic
from system.experts.yamnet import OFFSET, PATCH_HOP, Yamnet, load_network
from system.networks.segment import group_by_length

LOGMEL = LogMel(kind="logmel", sample_rate=16_000, bands=32, window_seconds=0.04, hop_seconds=0.02, stack=4)
CPU = torch.device("cpu")
YAMNET_FILE = "data/yamnet/yamnet_layers_float32_dequantised.npz"


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(-1) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1))


# YAMNet


def test_yamnet_network_matches_public_embeddings(shared: Path, goldens: Path) -> None:
    golden = np.load(goldens / "yamnet_esc10.npz")
    embedding, scores = load_network(shared / YAMNET_FILE, CPU)(golden["log_mel"])
    assert cosine(embedding, golden["embedding"]).min() >= 0.999
    assert np.abs(scores - golden["scores"]).max() < 0.03  # int8 against float32


def test_yamnet_finds_another_class_in_3_of_10_recordings_if_log_mels_are_not_quantised(
    shared: Path, goldens: Path
) -> None:
    """Its own log-mel gives its classes; the definition's gives another one for three of these ten."""
    golden = np.load(goldens / "yamnet_esc10.npz")
    network, expected = load_network(shared / YAMNET_FILE, CPU), golden["scores"].argmax(1)
    assert (network(golden["log_mel"])[1].argmax(1) == expected).all()
    paths = [shared / "data/esc10/audio" / str(name) for name in golden["file_name"]]
    columns = [log_mel(soundfile.read(path, dtype="float32")[0][:15_600], OFFSET) for path in paths]
    own = network(np.stack(columns))[1].argmax(1)
    assert (own != expected).sum() == 3


def test_yamnet_front_end_matches_public_one_within_int8_precision(shared: Path, goldens: Path) -> None:
    golden = np.load(goldens / "yamnet_esc10.npz")
    differences = []
    for name, expected in zip(golden["file_name"], golden["log_mel"], strict=True):
        wave, rate = soundfile.read(shared / "data/esc10/audio" / str(name), dtype="float32")
        assert rate == 16_000
        wave = np.pad(wave[:15_600], (0, max(0, 15_600 - len(wave))))
        found = log_mel(wave, OFFSET)
        assert found.shape == (96, 64)
        loud = expected > -3
        differences.append(np.abs(found - expected)[loud])
    assert np.median(np.concatenate(differences)) < 0.01


def test_yamnet_log_mel_of_a_tone_matches_definition() -> None:
    t = np.arange(16_000) / 16_000
    wave = np.sin(2 * np.pi * 1000 * t).astype(np.float32)
    column = log_mel(wave, OFFSET)[0]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    spectrum = np.abs(
        [np.sum(wave[:400] * window * np.exp(-2j * np.pi * k * np.arange(400) / 512)) for k in range(257)]
    )
    hertz_to_mel = lambda f: 1127 * np.log(1 + f / 700)  # noqa: E731
    edges = [hertz_to_mel(125) + i * (hertz_to_mel(7500) - hertz_to_mel(125)) / 65 for i in range(66)]
    for band in (10, 25, 26, 63):
        low, centre, high = edges[band : band + 3]
        total = 0.0
        for k in range(1, 257):
            mel = hertz_to_mel(k * 8000 / 256)
            total += spectrum[k] * max(0.0, min((mel - low) / (centre - low), (high - mel) / (high - centre)))
        assert column[band] == pytest.approx(np.log(total + 0.001), abs=1e-3)


def test_yamnet_patches_match_hand_values() -> None:
    columns = np.repeat(np.arange(200, dtype=np.float32)[:, None], 64, 1)
    found = cut_into_patches(columns, PATCH_HOP)
    assert [(int(p[0, 0]), int(p[-1, 0])) for p in found] == [(0, 95), (48, 143), (96, 191)]


@pytest.mark.parametrize(
    ("samples", "count"),
    [(1, 1), (399, 1), (15_600, 1), (15_601, 2), (23_280, 2), (23_281, 3), (80_000, 10), (128_000, 16)],
)
def test_yamnet_frame_count_matches_definition(shared: Path, samples: int, count: int) -> None:
    """The counts are those of Google's pad_waveform."""
    expert = Yamnet(kind="yamnet", weights=str(shared / YAMNET_FILE))
    frames = expert.load(CPU)([np.full(samples, 0.1, np.float32)])[0]
    assert frames.shape == (count, 1024)
    assert np.isfinite(frames).all()


def test_yamnet_last_frame_includes_the_end_of_the_clip(shared: Path) -> None:
    """Its last 0.18 s are only in the last of ten frames, which is padded with silence."""
    wave, _ = soundfile.read(shared / "data/esc10/audio/1-17150-A-12.flac", dtype="float32")
    wave = wave[:80_000]
    other = wave.copy()
    other[77_100:] *= -0.5
    tail = np.pad(wave[9 * 7680 :], (0, 9 * 7680 + 15_600 - 80_000))
    expert = Yamnet(kind="yamnet", weights=str(shared / YAMNET_FILE))
    frames, changed, last = expert.load(CPU)([wave, other, tail])
    assert np.abs(frames[:9] - changed[:9]).max() < 1e-5
    assert np.abs(frames[9] - changed[9]).max() > 0.1
    assert np.abs(frames[9:] - last).max() < 1e-5


def test_missing_and_wrong_yamnet_files_are_refused(tmp_path: Path) -> None:
    missing = Yamnet(kind="yamnet", weights=str(tmp_path / "none.npz"))
    with pytest.raises(KitError, match="weight"):
        missing.bank_name()
    (tmp_path / "text.npz").write_text("no weights")
    with pytest.raises(KitError, match="contain"):
        load_network(tmp_path / "text.npz", CPU)
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 cut")
    np.savez(tmp_path / "few.npz", **{"03_w": np.zeros(3)})
    for name in ("cut", "few"):
        with pytest.raises(KitError, match="contain"):
            load_network(tmp_path / f"{name}.npz", CPU)
    every = {f"{layer:02d}_{part}": np.zeros(3) for layer in range(3, 31) for part in "wb"}
    np.savez(tmp_path / "other.npz", **every | {"03_w": np.zeros(3), "30_w": np.zeros(3)})
    with pytest.raises(KitError, match="shapes"):
        load_network(tmp_path / "other.npz", CPU)


# log-mel


def test_logmel_is_highest_at_the_frequency_of_a_tone_and_lowest_for_silence() -> None:
    t = np.arange(16_000) / 16_000
    frames = LOGMEL.load(CPU)([np.sin(2 * np.pi * 2000 * t).astype(np.float32), np.zeros(16_000, np.float32)])
    centres = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + 8000 / 700), 34)[1:-1] / 2595) - 1)
    bands = frames[0].reshape(-1, 32)
    assert np.abs(centres[bands[10].argmax()] - 2000) < 150
    assert np.allclose(frames[1], (np.log(1e-5) + 6) / 4, atol=1e-5)


def test_logmel_columns_match_definition() -> None:
    wave = tiny.tone(3, 0.5, 1)
    columns = LOGMEL.load(CPU)([wave])[0].reshape(-1, 32)
    window = np.zeros(1024)
    window[192:832] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(640) / 640)
    padded = np.pad(wave.astype(np.float64), 512, "reflect")
    basis = filled.triangles(filled.htk_edges(32, 0, 8000), 16_000, 1024)
    for column in (0, 7, 24):
        power = np.abs(np.fft.rfft(padded[320 * column :][:1024] * window)) ** 2
        assert np.allclose(columns[column], (np.log(basis @ power + 1e-5) + 6) / 4, atol=2e-4)


@pytest.mark.parametrize("samples", [1, 100, 640, 16_000])
def test_logmel_frame_count_matches_definition(samples: int) -> None:
    frames = LOGMEL.load(CPU)([np.full(samples, 0.1, np.float32)])[0]
    columns = 1 + max(samples, 1024) // 320
    assert frames.shape == (-(-columns // 4), 128)


def test_logmel_frames_are_independent_of_other_clips() -> None:
    waves = [tiny.tone(p, 0.5 + p / 3, p) for p in range(4)]
    together = LOGMEL.load(CPU)(waves)
    for wave, frames in zip(waves, together, strict=True):
        assert np.array_equal(LOGMEL.load(CPU)([wave])[0], frames)


def test_bank_key_of_an_expert_depends_on_settings_but_not_weight_paths(shared: Path, tmp_path: Path) -> None:
    assert LOGMEL.bank_name() != LOGMEL.model_copy(update={"bands": 33}).bank_name()
    there = shared / YAMNET_FILE
    copy = tmp_path / "copy.npz"
    copy.write_bytes(there.read_bytes())
    a, b = (Yamnet(kind="yamnet", weights=str(path)).bank_name() for path in (there, copy))
    assert a == b
    copy.write_bytes(there.read_bytes() + b"x")
    assert Yamnet(kind="yamnet", weights=str(copy)).bank_name() != a


# running networks in batches


def test_function_applied_by_rows_gets_full_batches_of_rows_from_several_series() -> None:
    sizes: list[int] = []

    def twice(rows: np.ndarray) -> np.ndarray:
        sizes.append(len(rows))
        return 2 * rows[:, 0]

    wholes = [np.arange(n * 3.0).reshape(n, 3) for n in (1, 5, 2, 7)]
    found = apply_by_rows(wholes, 4, twice)
    assert sizes == [4, 4, 4, 3]
    assert [len(one) for one in found] == [1, 5, 2, 7]
    assert all(np.array_equal(one, 2 * whole[:, 0]) for one, whole in zip(found, wholes, strict=True))


def test_series_are_grouped_by_equal_length_up_to_a_maximum_total() -> None:
    assert list(group_by_length([5, 3, 5, 5, 9, 3], 10)) == [[1, 5], [0, 2], [3], [4]]
    assert list(group_by_length([20], 10)) == [[0]]


@pytest.mark.parametrize("size", [4, 5, 7, 8, 9, 23, 24, 40, 41])
@pytest.mark.parametrize("is_ceiled", [False, True])
def test_convolutions_computed_in_pieces_match_one_pass(size: int, is_ceiled: bool) -> None:
    """Means of 4 over a sum of 9 neighbours: an output sees one output to either side."""

    def network(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.shape[2])
        near = torch.nn.functional.avg_pool1d(x, 9, 1, 4, count_include_pad=True)
        return torch.nn.functional.avg_pool1d(near, 4, 4, ceil_mode=is_ceiled)

    x = torch.arange(float(size)).square()[None, None]
    seen: list[int] = []
    whole = network(x)
    for most in (1, 2, 5):
        seen.clear()
        assert torch.allclose(compute_in_pieces(network, x, 2, 4, 1, most), whole)
        assert max(seen) <= 4 * (most + 2) + 3
    if size >= 24:
        assert not torch.allclose(compute_in_pieces(network, x, 2, 4, 0, 2), whole)


def test_precision_settings_are_restored_at_the_end_of_exact_arithmetic() -> None:
    torch.set_float32_matmul_precision("high")
    try:
        with exact_arithmetic():
            assert torch.get_float32_matmul_precision() == "highest"
            assert torch.is_inference_mode_enabled()
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.slow
def test_logmel_and_yamnet_process_a_ten_minute_clip(tmp_path: Path, shared: Path) -> None:
    wave = np.random.default_rng(0).normal(0, 0.05, 600 * 16_000).astype(np.float32)
    assert LOGMEL.load(CPU)([wave])[0].shape == (7501, 128)
    frames = Yamnet(kind="yamnet", weights=str(shared / YAMNET_FILE)).load(CPU)([wave])[0]
    assert frames.shape[0] == 1 + -(-(600 * 16_000 - 15_600) // 7680)
    assert np.isfinite(frames).all()


def test_unpublished_checkpoint_is_warned_about_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "w.pth").write_bytes(b"another file")
    (tmp_path / "pca.pth").write_bytes(b"another one")
    expert = Vggish(kind="vggish", weights=str(tmp_path / "w.pth"), pca_weights=str(tmp_path / "pca.pth"))
    for _ in range(2):
        assert set(expert.checksums()) == {"weights", "pca_weights"}
    digits = hashlib.sha256(b"another file").hexdigest()[:8]
    said = f"w.pth differs from the published file (its sha256 begins with {digits}, not with 10086976); unless"
    assert [record.getMessage() for record in caplog.records if said in record.getMessage()] != []
    assert len(caplog.records) == 2


def test_known_checksums_match_published_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Sources: the record of Cnn14_16k_mAP=0.438.pth, and the names of torchvggish's files."""
    cnn14 = PannsCnn14(kind="panns_cnn14_16k", weights="w.pth")
    vggish = Vggish(kind="vggish", weights="w.pth", pca_weights="p.pth")
    assert cnn14.known_sha256() == {"weights": "e2ee543a27919542c2ea03eabaa70b24dcd4e6c8e05621de6b67a94e4c5058e6"}
    assert vggish.known_sha256() == {"weights": "10086976", "pca_weights": "970ea276"}
    assert all(f"-{digits}.pth" in vggish.published_addresses()[name] for name, digits in vggish.known_sha256().items())

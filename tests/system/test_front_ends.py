"""Front-ends on real recordings, with bands that resampling leaves empty and with digital silence: against the
published layouts in float64."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import filled
import numpy as np
import published
import pytest
import soundfile
import soxr
import torch
from loaded import largest, loaded, relative, weights

from data_tools.audio import read_audio
from data_tools.errors import KitError
from system.experts import LogMel as LogMelExpert
from system.experts import LogMelSlaney, audioset, logmel, openl3, vggsound
from system.networks import frontend
from system.networks.frontend import LogMelFrontEnd, MelPower, published_log_mel
from system.networks.weights import Weights

CPU = torch.device("cpu")
Recording = Callable[[str, int], np.ndarray]
# A dog, digitally silent after 0.55 s; ticks of a clock; a fire; two of them kept at 44.1 kHz. All end at 8 kHz.
NAMES = ["1-110389-A-0.flac", "1-21934-A-38.flac", "1-17150-A-12.flac", "44 1-110389-A-0.flac", "44 1-17150-A-12.flac"]


@pytest.fixture
def recording(shared: Path, tmp_path: Path) -> Recording:
    """A recording of ESC-10, which are 16 kHz, at another rate; "44 ": by way of a WAV file of 44.1 kHz, 16 bits."""

    def read(name: str, rate: int) -> np.ndarray:
        path = shared / "data/esc10/audio" / name.removeprefix("44 ")
        if name.startswith("44 "):
            wave, own = soundfile.read(path)
            path = tmp_path / "44.wav"
            soundfile.write(path, soxr.resample(wave, own, 44_100), 44_100, subtype="PCM_16")
        return read_audio(path, rate)

    return read


def frames_of(settings: Any, wave: np.ndarray) -> np.ndarray:
    return settings.load(CPU)([wave])[0]


def mel_power(wave: np.ndarray, window: int, hop: int, basis: np.ndarray) -> np.ndarray:
    """(N,) -> (T, bands) by the definition in float64: centred, reflected, periodic Hann in the middle of the FFT."""
    size = 2 * (len(basis) - 1)
    before = (size - window) // 2
    hann = np.zeros(size)
    hann[before : before + window] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    padded = np.pad(wave.astype(np.float64), size // 2, mode="reflect")
    columns = [padded[first : first + size] * hann for first in range(0, len(padded) - size + 1, hop)]
    return np.abs(np.fft.rfft(columns)) ** 2 @ basis


# OpenL3


@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_openl3_log_mel_of_recordings_matches_published_code(recording: Recording, name: str) -> None:
    """An FFT in float32 has errors of 4 to 6 dB; in float64 without the kernels' rounding 0.3 to 0.9 dB."""
    wave = recording(name, openl3.RATE)
    parts = published.openl3_seconds(wave)[[1, 4]]
    assert torch.equal(parts, torch.from_numpy(openl3.one_second_windows(wave)[[1, 4]]))
    expected = published.openl3_log_mel(published.in_float64(weights("openl3")), parts)
    found = openl3.log_mel(parts, openl3.build_front_end(weights("openl3")))
    assert found.dtype == torch.float32
    assert largest(found, expected.numpy()) < 1e-5
    assert expected.min() < -70, "no band is empty"


@torch.inference_mode()
def test_openl3_frames_of_a_recording_match_published_code(recording: Recording) -> None:
    wave = recording("44 1-110389-A-0.flac", openl3.RATE)[:40_000]
    columns = published.openl3_log_mel(published.in_float64(weights("openl3")), published.openl3_seconds(wave))
    expected = published.openl3_network(weights("openl3"), columns.float())
    assert relative(loaded("openl3")([wave])[0], expected.numpy()) < 2e-5


@pytest.mark.slow
@torch.inference_mode()
def test_openl3_frames_match_published_code_in_float64(recording: Recording) -> None:
    own, worst = published.in_float64(weights("openl3")), {}
    for name in ("1-31748-A-21.flac", *NAMES[-2:]):
        wave = recording(name, openl3.RATE)
        worst[name] = relative(loaded("openl3")([wave])[0], published.openl3(own, wave))
    print({name: f"{value:.1e}" for name, value in worst.items()})
    assert max(worst.values()) < 2e-5


@torch.inference_mode()
def test_openl3_log_mel_of_silence_and_click_matches_published_code() -> None:
    click = np.zeros(20_000, np.float32)
    click[15_000:15_100] = 1e-6
    waves = [np.zeros(1, np.float32), np.ones(1, np.float32), click]
    parts = torch.cat([published.openl3_seconds(wave) for wave in waves])
    expected = published.openl3_log_mel(published.in_float64(weights("openl3")), parts)
    assert not expected[0].any(), "silence is as loud as its maximum"
    assert expected[1:].amin((1, 2)).tolist() == pytest.approx([-80, -59.95], abs=0.01)  # the least amplitude is 1e-10
    assert largest(openl3.log_mel(parts, openl3.build_front_end(weights("openl3"))), expected.numpy()) < 1e-5


# PANNs


def panns_front_end(size: int, mel: np.ndarray) -> Weights:
    """Return the tensors of the front-end in a checkpoint of PANNs."""
    kernels = zip(("real", "imag"), map(torch.from_numpy, filled.dft_kernels(size)), strict=True)
    tensors = {f"spectrogram_extractor.stft.conv_{part}.weight": own for part, own in kernels}
    return Weights(Path("some.pth"), tensors | {"logmel_extractor.melW": torch.from_numpy(mel)})


@torch.inference_mode()
def test_panns_log_mel_of_24_recordings_matches_published_code(shared: Path) -> None:
    checkpoint = panns_front_end(512, filled.panns_mel())
    front_end, doubled = published_log_mel(checkpoint, 512, 160), published.in_float64(checkpoint)
    for path in sorted((shared / "data/esc10/audio").glob("*.flac"))[::17][:24]:
        wave = read_audio(path, 16_000)[-24_000:]
        expected = published.panns_log_mel(doubled, wave, 160)
        assert largest(front_end(torch.from_numpy(wave)[None]), expected.numpy()) < 2e-5, path.name


@pytest.mark.parametrize("name", NAMES[1:3])
@torch.inference_mode()
def test_log_mel_front_end_at_32_khz_matches_published_code(recording: Recording, name: str) -> None:
    """An FFT in float32 has errors of 0.08 dB for recordings without sound above 8 kHz."""
    checkpoint = panns_front_end(1024, filled.panns_mel(32_000, 1024, 14_000))
    wave = recording(name, 32_000)[:40_000]
    expected = published.panns_log_mel(published.in_float64(checkpoint), wave, 320).numpy()
    assert largest(LogMelFrontEnd()(torch.from_numpy(wave)[None]), expected) < 1e-4
    assert largest(published_log_mel(checkpoint, 1024, 320)(torch.from_numpy(wave)[None]), expected) < 2e-5


def test_panns_checkpoint_without_front_end_is_refused() -> None:
    tensors = dict(panns_front_end(512, filled.panns_mel()).tensors)
    tensors.pop("spectrogram_extractor.stft.conv_imag.weight")
    with pytest.raises(KitError, match="tensor"):
        published_log_mel(Weights(Path("some.pth"), tensors), 512, 160)


# kernels


@pytest.mark.parametrize("at_once", [1, 7, 6_000])
def test_mel_spectrum_with_published_fourier_kernels_matches_products_of_wave_and_kernels(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """The kernels may be far from cosines, and any number of columns may be computed together."""
    monkeypatch.setattr(frontend, "COLUMNS_AT_ONCE", at_once)
    generator = torch.Generator().manual_seed(1)
    real, imaginary = (own + 0.01 * torch.randn(own.shape, generator=generator) for own in frontend.dft_kernels(32))
    basis, waves = torch.rand(17, 5, generator=generator), torch.randn(3, 100, generator=generator)
    found = MelPower.from_kernels(real, imaginary, basis, 6)(waves)
    columns = waves.double().unfold(1, 32, 6)
    power = (columns @ real[:, 0].double().T) ** 2 + (columns @ imaginary[:, 0].double().T) ** 2
    assert found.dtype == torch.float64
    assert relative(found, (power @ basis.double()).numpy()) < 1e-7


# the others


@pytest.mark.parametrize("name", NAMES[:2])
def test_logmel_slaney_of_recordings_matches_definition(recording: Recording, name: str) -> None:
    """Errors in float32 would be up to 2.5 in empty bands, such as Clotho's above 20 kHz."""
    wave = recording(name, 44_100)[:60_000]
    settings = {"sample_rate": 44_100, "bands": 64, "window_seconds": 0.04, "hop_seconds": 0.02, "lowest": 12}
    expert = LogMelSlaney(kind="logmel_slaney", highest=20_000, **settings)
    edges = filled.slaney_edges(64, 12, 20_000)
    basis = filled.area_norm(filled.triangles(edges, 44_100, 2048), edges).T
    expected = np.log(mel_power(wave, 1764, 882, basis) + np.spacing(1.0))
    assert largest(frames_of(expert, wave), expected) < 5e-6
    assert expected.min() < -20, "no band is empty"


def test_logmel_slaney_of_silence_is_minus_36() -> None:
    settings = {"sample_rate": 16_000, "bands": 8, "window_seconds": 0.04, "hop_seconds": 0.02}
    expert = LogMelSlaney(kind="logmel_slaney", lowest=0, highest=8_000, **settings)
    found = frames_of(expert, np.zeros(16_000, np.float32))
    assert found == pytest.approx(-36.043653)
    assert pytest.approx(-36.043653) == logmel.SILENCE


@pytest.mark.parametrize("name", NAMES[1:4])
def test_logmel_of_recordings_matches_definition(recording: Recording, name: str) -> None:
    wave = recording(name, 48_000)[:60_000]
    settings = {"sample_rate": 48_000, "bands": 64, "window_seconds": 0.02, "hop_seconds": 0.01, "stack": 1}
    basis = filled.triangles(filled.htk_edges(64, 0, 24_000), 48_000, 1024).T
    expected = (np.log(mel_power(wave, 960, 480, basis) + 1e-5) + 6) / 4
    assert largest(frames_of(LogMelExpert(kind="logmel", **settings), wave), expected) < 1e-6


@pytest.mark.parametrize("offset", [0.001, 0.01])
@pytest.mark.parametrize("name", NAMES[:2])
def test_audioset_log_mel_matches_definition(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, name: str, offset: float
) -> None:
    monkeypatch.setattr(audioset, "COLUMNS_AT_ONCE", 50)
    wave = recording(name, 16_000)[:20_000]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    bins, edges = (1127 * np.log1p(np.asarray(hertz) / 700) for hertz in (np.linspace(0, 8000, 257), (125, 7500)))
    edges = np.linspace(*edges, 66)
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    basis = np.maximum(0, np.minimum((bins[:, None] - low) / (centre - low), (high - bins[:, None]) / (high - centre)))
    columns = [wave[first : first + 400].astype(np.float64) * hann for first in range(0, len(wave) - 399, 160)]
    expected = np.log(np.abs(np.fft.rfft(columns, 512)) @ basis + offset)
    found = audioset.log_mel(wave, offset)
    assert found.dtype == np.float32
    assert largest(found, expected) < 5e-7


def test_vggsound_standardises_with_population_deviation() -> None:
    """The divisors 257 and 256 differ by 0.2 % for one column."""
    wave = np.random.default_rng(0).normal(0, 0.1, 512).astype(np.float32)
    found = vggsound.spectrogram(wave)
    assert found.shape == (257, 1)
    assert found.astype(np.float64).std() == pytest.approx(1, abs=1e-6)

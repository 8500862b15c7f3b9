"""The log-mel of M2D: outputs of the original code, recordings, and mistakes that must be noticed."""

from collections.abc import Callable
from pathlib import Path

import modern
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from filled import area_norm, htk_edges, slaney_edges, triangles
from loaded import largest
from threads import one_thread  # noqa: F401  a fixture

from system.networks import m2d
from system.networks.m2d import M2dLogMel, mel_basis
from system.networks.m2d_published import Geometry

pytestmark = pytest.mark.usefixtures("one_thread")

G608 = Geometry(80, 608, 16, 16, 16_000)
HANN = torch.hann_window(400, periodic=False, dtype=torch.float64)


def log_mel(made: M2dLogMel, clip: str) -> torch.Tensor:
    waves = modern.wave(clip)
    return made(waves, modern.whole(waves))[0]


def mel_error(made: M2dLogMel) -> float:
    return largest(log_mel(made, "A3"), modern.golden()["m2d_A3_logmel"])


def test_m2d_log_mel_matches_original_code() -> None:
    golden, made = modern.golden(), M2dLogMel(G608)
    assert largest(mel_basis(G608).T.float(), golden["m2d_mel_basis"]) < 1e-7
    assert mel_error(made) < 5e-4
    for clip in "AB":
        found = log_mel(made, clip)
        assert found.shape == tuple(golden[f"m2d_{clip}_logmel_shape"])
        assert largest(found[:, golden[f"m2d_{clip}_logmel_frames"]], golden[f"m2d_{clip}_logmel_at"]) < 5e-4
    assert log_mel(made, "S").unique().tolist() == pytest.approx(golden["m2d_S_logmel_value"], abs=1e-5)
    assert log_mel(made, "C").shape == tuple(golden["m2d_C_logmel_shape"])
    for clip in "ABC":
        found = log_mel(made, clip).double()
        statistics = [float(found.mean()), float(found.std(correction=0))]
        assert statistics == pytest.approx(golden[f"m2d_{clip}_logmel_mean_std"], abs=1e-5)


def numpy_log_mel(samples: np.ndarray) -> np.ndarray:
    """(N,) at 16 kHz -> (80, 1 + N // 160) float64 by NumPy alone."""
    padded = np.pad(samples.astype(np.float64), 200, mode="reflect")
    columns = np.stack([padded[160 * k : 160 * k + 400] for k in range(1 + len(samples) // 160)])
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    edges = slaney_edges(80, 50, 8000)
    power = np.abs(np.fft.rfft(columns * window)) ** 2
    result: np.ndarray = np.log(area_norm(triangles(edges, 16_000, 400), edges) @ power.T + 2.0**-23)
    return result


def test_m2d_log_mel_of_recordings_matches_numpy(shared: Path) -> None:
    made = M2dLogMel(G608)
    for samples in [*modern.recordings(shared), np.zeros(16_000, np.float32)]:
        waves = torch.from_numpy(samples)[None]
        assert largest(made(waves, modern.whole(waves))[0], numpy_log_mel(samples)) < 5e-4


def test_m2d_log_mel_of_a_padded_clip_matches_the_clip_alone() -> None:
    made, waves = M2dLogMel(G608), modern.wave("A3")[:, :20_011]
    padded = made(F.pad(waves, (0, 7000)), torch.tensor([20_011]))[0, :, :126]
    assert torch.equal(padded, made(waves, torch.tensor([20_011]))[0])
    assert made(F.pad(waves[:, :5], (0, 500)), torch.tensor([5])).isfinite().all()


def zero_padding(made: M2dLogMel, waves: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return F.pad(waves, (200, 200))


def of_edges(edges: np.ndarray, is_normed: bool = True) -> torch.Tensor:
    basis = triangles(edges, 16_000, 400)
    return torch.from_numpy((area_norm(basis, edges) if is_normed else basis).T.copy())


def buffer(name: str, values: torch.Tensor) -> Callable[[M2dLogMel, pytest.MonkeyPatch], None]:
    return lambda made, patch: patch.setitem(made._buffers, name, values)


MEL_MISTAKES: dict[str, tuple[float, Callable[[M2dLogMel, pytest.MonkeyPatch], None]]] = {
    "symmetric Hann": (0.2, buffer("window", HANN)),
    "zero padding": (2.0, lambda _, patch: patch.setattr(M2dLogMel, "_reflect_ends", zero_padding)),
    "no area norm": (3.0, buffer("basis", of_edges(slaney_edges(80, 50, 8000), is_normed=False))),
    "HTK scale": (6.0, buffer("basis", of_edges(htk_edges(80, 50, 8000)))),
    "bands from 0 Hz": (4.0, buffer("basis", of_edges(slaney_edges(80, 0, 8000)))),
    "lowest power 1e-10": (0.03, lambda _, patch: patch.setattr(m2d, "MIN_POWER", 1e-10)),
}


@pytest.mark.parametrize("mistake", MEL_MISTAKES)
def test_planted_mistakes_in_m2d_log_mel_exceed_the_test_tolerance(
    mistake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, plant = MEL_MISTAKES[mistake]
    made = M2dLogMel(G608)
    plant(made, monkeypatch)
    assert mel_error(made) > error

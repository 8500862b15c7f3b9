"""Resampling: soxr's HQ and resampy's filters, against stored results and their definition."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from loaded import largest
from quick import first_quick

from data_tools.audio.read import AudioError, read_audio
from data_tools.audio.resampling import Resampling, resampler
from data_tools.manifest import read_manifest
from system.experts import Waveform
from system.features.build import build_features
from system.recipe.load import load_recipe

# zeros on either side, table entries between them, shape of the Kaiser window, kept share of the lower half rate
KAISER: dict[Resampling, tuple[int, int, float, float]] = {
    "kaiser_best": (50, 8192, 12.98458524704002, 0.9173473712608761),
    "kaiser_best_0.2": (64, 512, 14.769656459379492, 0.9475937167399596),
}
RATES = [
    *[(44_100, 48_000), (44_100, 32_000), (22_050, 32_000), (44_100, 16_000), (16_000, 48_000), (48_000, 44_100)],
    *[(96_000, 32_000), (11_025, 8_000)],
]


def by_definition(wave: np.ndarray, rate: int, wanted: int, how: Resampling) -> np.ndarray:
    """Resample one sample at a time, as resampy describes it: two wings of a table, read with linear interpolation.

    Up to 0.2.2, its clock adds up steps in float64; from 0.3 on, it multiplies, without a drift.
    """
    zeros, entries, beta, rolloff = KAISER[how]
    grid = np.linspace(0, zeros, zeros * entries + 1)
    scale = min(1.0, wanted / rate)
    table = scale * rolloff * np.sinc(rolloff * grid) * np.kaiser(2 * zeros * entries + 1, beta)[zeros * entries :]
    slope = np.append(np.diff(table), 0.0)
    step = int(scale * entries)

    def filter_weight(distance: float, neighbours: np.ndarray) -> float:
        position = distance * entries
        count = min(len(neighbours), (len(table) - int(position)) // step)
        at = int(position) + step * np.arange(count)
        return float(((table[at] + (position - int(position)) * slope[at]) * neighbours[:count]).sum())

    found, clock = [], 0.0
    for new in range(len(wave) * wanted // rate):
        before, part = divmod(new * rate, wanted)
        distance = scale * part / wanted
        if how == "kaiser_best_0.2":
            before, distance = int(clock), scale * (clock - int(clock))
            clock += 1 / (wanted / rate)
        found.append(filter_weight(distance, wave[before::-1]) + filter_weight(scale - distance, wave[before + 1 :]))
    return np.array(found)


def resampled(wave: np.ndarray, rate: int, wanted: int, how: Resampling, block: int = 10**9) -> np.ndarray:
    resample = resampler(rate, wanted, how)
    firsts = range(0, len(wave), block)
    return np.concatenate([resample(wave[first : first + block], first + block >= len(wave)) for first in firsts])


@pytest.mark.parametrize("rate", [16_000, 32_000, 48_000])
def test_resampling_by_method_soxr_or_method_kaiser_best_matches_stored_waveforms(
    goldens: Path, tmp_path: Path, rate: int
) -> None:
    golden = np.load(goldens / "resample.npz")
    soundfile.write(tmp_path / "wave.wav", golden["wave_int16_44100"], 44_100, subtype="PCM_16")
    found = read_audio(tmp_path / "wave.wav", rate)
    expected = golden[f"librosa_soxr_hq_{rate}"]
    assert 0 <= len(expected) - len(found) <= 1  # librosa rounds the length up
    assert largest(found, expected[: len(found)]) < 1e-6
    kaiser = golden[f"resampy_kaiser_best_f64_{rate}"]
    assert largest(read_audio(tmp_path / "wave.wav", rate, "kaiser_best"), kaiser) < 1.2e-7, "float32 rounding"
    assert 4e-3 < largest(found, kaiser) < 1.7e-2
    assert 4e-3 < largest(read_audio(tmp_path / "wave.wav", rate, "kaiser_best_0.2"), kaiser) < 1.7e-2


@pytest.mark.parametrize("how", KAISER)
@pytest.mark.parametrize(("rate", "wanted"), first_quick(RATES, 4))
def test_resampling_with_kaiser_filters_equals_their_definition(how: Resampling, rate: int, wanted: int) -> None:
    wave = np.random.default_rng(rate).normal(0, 0.1, 700).astype(np.float32)
    for length in (1, 2, 50, 700):
        expected = by_definition(wave[:length].astype(np.float64), rate, wanted, how)
        assert len(expected) == math.floor(length * wanted / rate)
        found = resampled(wave[:length], rate, wanted, how)
        assert found.dtype == np.float32
        assert largest(found, expected) < 4e-8 if len(expected) else not len(found)


@pytest.mark.parametrize("how", ["soxr_hq", *KAISER])
@pytest.mark.parametrize(("rate", "wanted"), first_quick([*RATES, (16_000, 16_000)], 3))
def test_resampling_does_not_depend_on_block_size(how: Resampling, rate: int, wanted: int) -> None:
    wave = np.random.default_rng(1).normal(0, 0.1, 5000).astype(np.float32)
    whole = resampled(wave, rate, wanted, how)
    assert abs(len(whole) - 5000 * wanted / rate) <= 1
    for block in (1, 333, 2500, 4999):
        assert np.array_equal(resampled(wave, rate, wanted, how, block), whole), block


@pytest.mark.parametrize("how", KAISER)
def test_single_sample_and_silence_are_resampled(tmp_path: Path, how: Resampling) -> None:
    soundfile.write(tmp_path / "one.wav", np.array([0.5]), 44_100, subtype="FLOAT")
    assert read_audio(tmp_path / "one.wav", 16_000, how).tolist() == [0.5]
    assert read_audio(tmp_path / "one.wav", 48_000, how).shape == (1,)
    soundfile.write(tmp_path / "silence.wav", np.zeros(30_000), 44_100)
    assert not read_audio(tmp_path / "silence.wav", 48_000, how).any()


def test_resampling_that_needs_a_too_long_filter_is_refused(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "x.wav", np.zeros(9_000), 383_999, subtype="FLOAT")
    words = (
        r"x\.wav: 9,000 samples of 1 channel at 383,999 Hz cannot be resampled to 48,000 Hz: .*resampling to soxr_hq"
    )
    with pytest.raises(AudioError, match=words):
        read_audio(tmp_path / "x.wav", 48_000, "kaiser_best")
    assert len(read_audio(tmp_path / "x.wav", 48_000)) == 1125


def test_shipped_recipes_of_papers_resample_audio_like_the_papers(root: Path) -> None:
    for name in ("take_it_easy", "honest", "clotho_v1"):
        experts = load_recipe(root / f"recipes/take_it_easy/{name}.yaml").recipe.model.audio.experts
        assert {kind: expert.resampling for kind, expert in experts.items()} == {
            "openl3": "kaiser_best_0.2",
            "panns": "kaiser_best_0.2",
            "vggsound": "soxr_hq",
            "vggish": "kaiser_best_0.2",
        }
    for name in ("clotho", "audiocaps"):
        audio = load_recipe(root / f"recipes/metric_learning/{name}.yaml").recipe.model.audio
        assert audio.experts["waveform"].resampling == "kaiser_best_0.2"


def test_expert_uses_its_configured_resampling(world: Path, tmp_path: Path) -> None:
    clip = read_manifest(world)[0]
    heard = {}
    for how in ("soxr_hq", "kaiser_best", "kaiser_best_0.2"):
        expert = Waveform(kind="waveform", sample_rate=11_025, resampling=how)
        heard[how] = build_features([clip], {"w": expert}, tmp_path / "banks").frames("w", clip.id)[:, 0]
        expected = (read_audio(clip.path, 11_025, how) * 32_768).round()
        assert np.array_equal(heard[how], expected), how
    assert not np.array_equal(heard["soxr_hq"][:5000], heard["kaiser_best"][:5000])
    assert not np.array_equal(heard["kaiser_best_0.2"], heard["kaiser_best"])


ORACLE = """
import sys
import numpy as np
import resampy
waves = np.load(sys.argv[1])
found = {name: resampy.resample(waves[name].astype(float), *map(int, name.split("_")[:2]), filter="kaiser_best")
         for name in waves}
np.savez(sys.argv[2], **found)
"""


@pytest.mark.slow
def test_method_kaiser_best_0_2_resamples_like_release_0_2_of_the_package_resampy(tmp_path: Path) -> None:
    """Compared with resampy 0.2.2 in a separate environment; two minutes long, so that its clock has drifted."""
    rates = [*RATES, (48_000, 16_000), (32_000, 16_000), (192_000, 44_100)]
    rng = np.random.default_rng(1)
    waves = {f"{rate}_{wanted}_5": rng.normal(0, 0.1, 5 * rate).astype(np.float32) for rate, wanted in rates}
    waves["44100_16000_120"] = rng.normal(0, 0.1, 120 * 44_100).astype(np.float32)
    np.savez(tmp_path / "waves.npz", **waves)  # type: ignore[arg-type]
    python = tmp_path / "venv/bin/python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", "resampy==0.2.2"], check=True, timeout=600)
    subprocess.run([python, "-W", "ignore", "-c", ORACLE, tmp_path / "waves.npz", tmp_path / "found.npz"], check=True)
    expected = np.load(tmp_path / "found.npz")
    for name, wave in waves.items():
        rate, wanted, _ = map(int, name.split("_"))
        for block in (10**9, 100_003):
            found = resampled(wave, rate, wanted, "kaiser_best_0.2", block)
            assert len(found) == len(expected[name])
            assert largest(found, expected[name]) < 1e-6, name

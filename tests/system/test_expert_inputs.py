"""The five experts on odd waves and odd files, of any length and in any company."""

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import filled
import numpy as np
import published
import pytest
import torch
from loaded import KINDS, TIMELY, loaded, relative, weights

from data_tools.errors import KitError
from system.experts import VggSound, panns, vggsound
from system.networks.panns import Cnn14
from system.networks.weights import Weights, read_weights

CPU = torch.device("cpu")
FRAME_COUNTS: dict[str, Callable[[int], int]] = {  # by the definitions
    "panns_cnn14_16k": lambda n: (1 + max(n, 4960) // 160) // 32,
    "panns_resnet38": lambda n: (1 + max(n, 9920) // 320) // 32,
    "openl3": lambda n: 1 + max(0, math.ceil((n - 24_000) / 24_000)),
    "vggsound": lambda n: math.ceil((1 + (max(n, 512) - 512) // 159) / 32),
    "vggish": lambda n: (1 + (max(n, 15_600) - 400) // 160) // 96,
}


def noise(samples: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.1, samples).astype(np.float32)


MORE = (32 * 160 * 11, 32 * 160 * 9 + 2000)  # samples, which end at a piece and within one
# Networks that take a third of a second for each frame of OpenL3's, and seconds for the others'.
LARGE = ("openl3", "panns_cnn14_16k", "vggish")
QUICK = [pytest.param(kind, marks=pytest.mark.slow) if kind in LARGE else kind for kind in TIMELY]


@pytest.mark.parametrize("kind", QUICK)
def test_number_of_frames_matches_its_definition_for_any_length(kind: str) -> None:
    rate = KINDS[kind].model_construct().rate
    lengths = [1, 511, 512, 671, 4959, 4960, rate // 2, rate // 2 + 1, 15_599, 15_600, rate, 30_959, 30_960]
    waves = [noise(n, n) for n in lengths] + [np.zeros(n, np.float32) for n in (1, rate // 10, rate)]
    waves += [np.ones(rate, np.float32), np.full(rate, 1e-30, np.float32), 5 * noise(rate, 1)]
    series = loaded(kind)(waves)
    for samples, own in zip(waves, series, strict=True):
        assert own.shape == (FRAME_COUNTS[kind](len(samples)), KINDS[kind].model_construct().dim), len(samples)
        assert own.dtype == np.float32
        assert np.isfinite(own).all(), len(samples)


@pytest.mark.parametrize("kind", QUICK)
def test_frames_are_independent_of_other_waves_and_reproducible(kind: str) -> None:
    rate = KINDS[kind].model_construct().rate
    waves = [noise(round(rate * seconds), n) for n, seconds in enumerate((1.0, 2.3, 1.0, 0.1, 1.0, 2.3))]
    output = {"output": "pca"} if kind == "vggish" else {}  # quantised values would hide differences, or jump
    together = loaded(kind, **output)(waves)
    assert all(np.array_equal(a, b) for a, b in zip(together, loaded(kind, **output)(waves), strict=True))
    for samples, own in zip(waves, together, strict=True):
        assert relative(loaded(kind, **output)([samples])[0], own) < 5e-6


@pytest.mark.parametrize(
    ("kind", "module"), [pytest.param("panns_cnn14_16k", panns, marks=pytest.mark.slow), ("vggsound", vggsound)]
)
@pytest.mark.parametrize("samples", [32 * 160 * 11 - 1, *(pytest.param(n, marks=pytest.mark.slow) for n in MORE)])
def test_expert_frames_computed_in_pieces_match_one_pass(
    monkeypatch: pytest.MonkeyPatch, kind: str, module: Any, samples: int
) -> None:
    whole = loaded(kind)([noise(samples, 5)])[0]
    monkeypatch.setattr(module, "PIECE", 2)
    assert relative(loaded(kind)([noise(samples, 5)])[0], whole) < 5e-6
    where, name = (Cnn14, "reach") if module is panns else (vggsound, "REACH")
    monkeypatch.setattr(where, name, getattr(where, name) - 2)
    assert relative(loaded(kind)([noise(samples, 5)])[0], whole) > 1e-5, "frames see further than is computed"


@pytest.mark.slow
def test_panns_clip_of_exactly_one_frame_is_not_padded() -> None:
    """Padding after its 32 columns would replace the reflected end of the wave."""
    wave = noise(5000, 2)
    assert relative(loaded("panns_cnn14_16k")([wave])[0], published.panns(weights("panns_cnn14_16k"), wave)) < 2e-5


def test_vggsound_limits_samples_to_full_scale() -> None:
    loud = 5 * noise(16_000, 3)
    clipped = np.clip(loud, -1, 1)
    assert (loud != clipped).any()
    assert np.array_equal(vggsound.spectrogram(loud), vggsound.spectrogram(clipped))


def test_vggsound_time_pooling_matches_hand_values() -> None:
    samples = noise(16_000, 3)
    series = loaded("vggsound")([samples])[0]
    assert len(series) == 4
    for kernel, stride, expected in ((2, 1, [(0, 2), (1, 3), (2, 4)]), (3, 2, [(0, 3)]), (9, 4, [(0, 4)])):
        pooling = vggsound.TimePooling(kernel=kernel, stride=stride)
        found = loaded("vggsound", time_pooling=pooling)([samples])[0]
        assert np.allclose(found, [series[first:end].mean(0) for first, end in expected], rtol=1e-5, atol=1e-6)
    assert VggSound(kind="vggsound", weights="a", time_pooling=pooling).frames_per_second == pytest.approx(
        3.145 / 4, 1e-3
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ten_minute_clip_stays_within_memory_limit(kind: str) -> None:
    """Run in a separate process, whose peak memory is known."""
    code = f"""
import numpy as np, torch
from pathlib import Path
from system.experts import OpenL3, PannsCnn14, PannsResNet38, Vggish, VggSound
expert = {KINDS[kind].__name__}(**{dict(kind=kind, **filled.files(kind))!r})
samples = expert.rate * 600
frames = expert.load(torch.device("cpu"))([np.random.default_rng(0).normal(0, 0.1, samples).astype(np.float32)])[0]
assert np.isfinite(frames).all()
peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]  # getrusage counts what started it, too
print(len(frames), samples, peak)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, samples, kib = map(int, done.stdout.split())
    assert count == FRAME_COUNTS[kind](samples)
    assert kib < 2.5 * 2**20


@pytest.mark.parametrize("kind", KINDS)
def test_gpu_frames_match_cpu_frames(kind: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    waves = [noise(100_000, n) for n in range(3)]
    output = {"output": "pca"} if kind == "vggish" else {}
    on_gpu = KINDS[kind](**{"kind": kind, **filled.files(kind), **output}).load(torch.device("cuda"))(waves)
    for own, expected in zip(on_gpu, loaded(kind, **output)(waves), strict=True):
        assert relative(own, expected) < 5e-5


# odd files


@pytest.mark.parametrize("kind", QUICK)
def test_checkpoint_with_missing_key_or_wrong_shape_is_refused(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def load(tensors: dict[str, Any]) -> None:
        monkeypatch.setattr("system.networks.weights.read_weights", lambda *_: Weights(Path("some.pth"), tensors))
        KINDS[kind].model_construct(kind=kind, weights="some.pth", output="raw", pca_weights=None).load(CPU)

    key = {
        "panns_cnn14_16k": "conv_block6.bn2.running_var",
        "panns_resnet38": "resnet.layer4.0.downsample.2.running_var",
        "openl3": "speclayer.mel_basis",
        "vggsound": "audnet.layer4.0.downsample.0.weight",
        "vggish": "embeddings.4.bias",
    }[kind]
    tensors = dict(weights(kind).tensors)
    value = tensors.pop(key)
    with pytest.raises(KitError, match=rf"^some\.pth has no tensor {key}: the file is not the published checkpoint"):
        load(tensors)
    with pytest.raises(KitError, match=rf"^some\.pth: {key} has shape \(3, 3\), not \({value.shape[0]},"):
        load({**tensors, key: torch.zeros(3, 3)})
    with pytest.raises(KitError, match=rf"^some\.pth: {key} has infinite or NaN values"):
        load({**tensors, key: torch.full_like(value, torch.nan)})


@pytest.mark.parametrize("zipped", [False, True])
def test_damaged_and_foreign_checkpoints_are_refused(tmp_path: Path, zipped: bool) -> None:
    whole = tmp_path / "whole.pth"
    content = {"model": {"a": torch.arange(500.0), "b": np.arange(3.0)}, "queue": [np.int64(7), np.float32(0.5)]}
    torch.save(content, whole, _use_new_zipfile_serialization=zipped)
    weights = read_weights(whole, "model")
    assert weights.checked_tensor("a", 500).tolist() == list(range(500))
    assert weights.checked_tensor("b", 3).dtype == torch.float32
    data = whole.read_bytes()
    bad = tmp_path / "bad.pth"
    for damaged in (b"", b"<html>Not found</html>", data[: len(data) // 2], data[:-9], data[:60], b"PK\x03\x04" + data):
        bad.write_bytes(damaged)
        with pytest.raises(KitError, match="truncated"):
            read_weights(bad, "model")
    with pytest.raises(KitError, match="under"):
        read_weights(whole, "model_state_dict")
    torch.save([1, 2], bad)
    with pytest.raises(KitError, match="published"):
        read_weights(bad)


def test_code_in_a_checkpoint_is_not_executed(tmp_path: Path) -> None:
    class Planted:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "executed",)

    torch.save({"a": Planted()}, tmp_path / "planted.pth", _use_new_zipfile_serialization=False)
    with pytest.raises(KitError, match="tensors"):
        read_weights(tmp_path / "planted.pth")
    assert not (tmp_path / "executed").exists()


def test_arrays_pickled_by_numpy_1_are_read(tmp_path: Path) -> None:
    path = tmp_path / "old.pth"
    torch.save({"a": np.arange(6.0).reshape(2, 3)}, path, _use_new_zipfile_serialization=False)
    data = path.read_bytes()
    old = data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert old != data or np.__version__ < "2"
    path.write_bytes(old)
    assert read_weights(path).checked_tensor("a", 2, 3).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("kind", KINDS)
def test_missing_weight_file_is_reported_with_its_address(tmp_path: Path, kind: str) -> None:
    settings = {setting: str(tmp_path / Path(path).name) for setting, path in filled.files(kind).items()}
    expert = KINDS[kind](**{"kind": kind, **settings})
    assert set(expert.published_addresses()) == set(expert.weight_files())
    for setting, address in expert.published_addresses().items():
        assert unquote(address).endswith(Path(settings[setting]).name), "filled files have the published names"
    with pytest.raises(
        KitError,
        match=rf"the weight file {settings['weights']} is missing; published at http.*; save the file at this path",
    ):
        expert.bank_name()

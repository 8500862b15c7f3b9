"""Frozen networks on segments as experts: their frames equal those of the networks, segment by segment."""

import json
from pathlib import Path
from typing import Any

import filled
import numpy as np
import pytest
import soundfile
import torch
from hub_models import hub_folder
from loaded import relative
from threads import one_thread  # noqa: F401  a fixture

from data_tools.audio import read_audio
from data_tools.errors import KitError
from system.experts import AtstFrameExpert, EfficientATExpert, HuggingFaceExpert, PasstExpert
from system.experts.segmented import SegmentExpert
from system.networks.atst_frame import AtstFrame
from system.networks.efficientat import MobileNet

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SegmentExpert]:
    """Segments of a second; of filled weights, or random ones."""
    folder = tmp_path_factory.mktemp("weights")
    torch.manual_seed(5)
    atst = AtstFrame(is_floor_of_batch=False)
    torch.save(atst.state_dict(), folder / "atst.ckpt")
    mobile = MobileNet("mn04").state_dict()
    shapes = {key: tuple(value.shape) for key, value in mobile.items()}
    torch.save({key: torch.from_numpy(filled.fill(key, shapes)) for key in shapes}, folder / "mn04.pt")
    common: dict[str, Any] = {"segment_seconds": 1.0, "output": "frames"}
    passt = filled.files("passt")["weights"]
    hub = {"model": str(hub_folder("wavlm")), "type": "wavlm", "size": 16}
    return {
        "passt": PasstExpert(kind="passt", network="s16", weights=passt, **common),
        "efficientat": EfficientATExpert(kind="efficientat", network="mn04", weights=str(folder / "mn04.pt"), **common),
        "atst_frame": AtstFrameExpert(kind="atst_frame", weights=str(folder / "atst.ckpt"), **common),
        "hugging_face": HuggingFaceExpert.model_validate({"kind": "hugging_face", **hub, **common}),
    }


KINDS = [*(pytest.param(one, marks=pytest.mark.slow) for one in ("passt", "atst_frame")), "efficientat", "hugging_face"]
PER_SEGMENT = {"passt": 6, "efficientat": 4, "atst_frame": 25, "hugging_face": 49}  # of one second
IN_HALF = {"passt": 3, "efficientat": 2, "atst_frame": 13, "hugging_face": 24}  # that begin within half a second


def noise(expert: SegmentExpert, seconds: float, seed: int = 0) -> np.ndarray:
    size = round(seconds * expert.rate)
    return np.random.default_rng(seed).normal(0, 0.1, size).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")
def test_segment_expert_frames_match_consecutive_segments(experts: dict[str, SegmentExpert], kind: str) -> None:
    expert = experts[kind]
    waves = [noise(expert, 2.5), noise(expert, 0.5, 1), noise(expert, 1.0, 2)]
    found = expert.load(CPU)(waves)
    size, network = expert.rate, expert.load_network().eval()
    for wave, frames in zip(waves, found, strict=True):
        pieces = [wave[first : first + size] for first in range(0, len(wave), size)]
        with torch.inference_mode():
            expected = []
            for piece in pieces:
                one = torch.from_numpy(np.pad(piece, (0, size - len(piece))))[None]
                values, lengths = network.frames(one, torch.tensor([len(piece)]))
                expected.append(values[0, : int(lengths)].numpy())
        assert frames.dtype == np.float32
        assert frames.shape == (sum(map(len, expected)), expert.dim)
        assert relative(frames, np.concatenate(expected)) < 5e-5  # 1.2e-5 without AVX
    assert len(found[2]) == PER_SEGMENT[kind]
    assert len(found[1]) == IN_HALF[kind]
    assert len(found[0]) == 2 * PER_SEGMENT[kind] + IN_HALF[kind]
    assert expert.frames_per_second == pytest.approx(PER_SEGMENT[kind], abs=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")
@pytest.mark.slow
def test_segment_expert_with_clip_output_gives_one_vector_per_segment(
    experts: dict[str, SegmentExpert], kind: str
) -> None:
    expert = experts[kind].model_copy(update={"output": "clip"})
    wave = noise(expert, 1.5)
    (found,) = expert.load(CPU)([wave])
    network, size = expert.load_network().eval(), expert.rate
    last = np.pad(wave[size:], (0, size // 2))
    with torch.inference_mode():
        waves = torch.from_numpy(np.stack([wave[:size], last]))
        expected = network(waves, torch.tensor([size, size // 2])).numpy()
    assert relative(found, expected) < 1e-5
    assert expert.frames_per_second == 1


@pytest.mark.slow
@pytest.mark.parametrize("letter", ["A", "B"])
def test_passt_expert_frames_match_original_code(goldens: Path, letter: str) -> None:
    golden = np.load(goldens / "passt.npz")
    settings: dict[str, Any] = {"kind": "passt", "network": "s16", "weights": filled.files("passt")["weights"]}
    wave = golden[f"{letter}_wave_int16"].astype(np.float32) / 32_768
    (found,) = PasstExpert(**settings, segment_seconds=len(wave) / 32_000, output="clip").load(CPU)([wave])
    assert relative(found[0], golden[f"s16_{letter}_features"]) < 2e-5
    if letter == "A":
        (frames,) = PasstExpert(**settings, segment_seconds=10, output="frames").load(CPU)([wave])
        assert relative(frames, golden["s16_A_sequence_freqmean"]) < 2e-5


@pytest.mark.parametrize("kind", ["efficientat", "atst_frame"])
@pytest.mark.slow
def test_segment_experts_handle_44_khz_recordings_and_silence(
    shared: Path, tmp_path: Path, experts: dict[str, SegmentExpert], kind: str
) -> None:
    expert = experts[kind]
    soundfile.write(
        tmp_path / "x.wav", read_audio(sorted((shared / "data/esc10/audio").glob("*.flac"))[0], 44_100), 44_100
    )
    real = read_audio(tmp_path / "x.wav", expert.rate)
    compute = expert.load(CPU)
    together = compute([real, np.zeros_like(real), real[: expert.rate // 100]])
    assert all(np.isfinite(frames).all() for frames in together)
    assert relative(compute([real])[0], together[0]) < 1e-4, "alone or in company"
    assert np.ptp(together[0], 0).max() > 0.01
    assert len(together[2]) >= 1


def test_bank_name_of_a_segment_expert_does_not_depend_on_the_path_of_the_weights(
    experts: dict[str, SegmentExpert], tmp_path: Path
) -> None:
    import shutil

    shutil.copytree(hub_folder("wavlm"), tmp_path / "there")
    here = experts["hugging_face"]
    there = here.model_copy(update={"model": str(tmp_path / "there")})
    assert here.bank_name() == there.bank_name()
    assert "model" not in json.loads(json.dumps(here.identity()))
    assert here.bank_name() != here.model_copy(update={"segment_seconds": 2.0}).bank_name()
    (tmp_path / "there" / "model.safetensors").unlink()
    with pytest.raises(KitError, match="neither"):
        there.checksums()


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        ("passt", {"segment_seconds": 10.5}, "segment_seconds"),
        ("atst_frame", {"segment_seconds": 11.0}, "segment_seconds"),
        ("hugging_face", {"size": 17}, "frame"),
    ],
)
def test_invalid_segment_expert_settings_are_refused(
    experts: dict[str, SegmentExpert], kind: str, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(KitError, match=said):
        experts[kind].model_copy(update=changes).load(CPU)

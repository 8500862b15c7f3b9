"""The CRNN and the GRU: padding, other clips, and the original."""

import pytest
import torch
import torch.nn.functional as F
from heard import crnn, expert, frames, series, slaney
from threads import one_thread  # noqa: F401  a fixture

from system.audio.logmel import SILENCE
from system.models.audio import Gru
from system.models.audio.crnn import MIN_FRAMES, CrnnEncoder, GruEncoder
from system.models.batch import Series

pytestmark = pytest.mark.usefixtures("one_thread")


def test_crnn_size_and_initial_weights_match_original_code() -> None:
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
def test_evaluation_of_a_clip_is_independent_of_padding_and_other_clips(embedding: str) -> None:
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


def test_crnn_that_includes_padding_in_training_matches_public_code() -> None:
    encoder = crnn(embedding="mean").train()
    values = series(frames(30, 11, 47))
    found = encoder({"logmel": values}).values
    with torch.no_grad():
        maps = encoder.cnn(values.values[:, None])
        hidden, _ = encoder.gru(maps.transpose(1, 2).flatten(2))
        whole = F.interpolate(hidden.transpose(1, 2), 47, mode="linear", align_corners=False).transpose(1, 2)
        assert torch.allclose(found, F.normalize(whole.mean(1), dim=-1), atol=1e-5)
        given = crnn().train()({"logmel": values})
        assert given.lengths is not None
        assert given.lengths.tolist() == [47, 47, 47]
        assert torch.allclose(given.values, F.normalize(whole, dim=-1), atol=1e-5)
        evaluated = crnn().eval()({"logmel": values})
        assert evaluated.lengths is not None
        assert evaluated.lengths.tolist() == [30, 11, 47]


@torch.inference_mode()
def test_clips_under_four_frames_are_padded_with_silence() -> None:
    encoder = crnn().eval()
    (clip,) = frames(2)
    silence = torch.full((2, 64), SILENCE)
    assert torch.equal(embedded(encoder, series([clip]))[0], embedded(encoder, series([torch.cat([clip, silence])]))[0])


@pytest.mark.parametrize("embedding", ["frames", "mean"])
def test_gru_encoder_output_matches_a_direct_computation(embedding: str) -> None:
    settings = {"kind": "gru", "experts": expert(8), "width": 5, "hidden": 4, "dropout": 0.0, "embedding": embedding}
    encoder = Gru.model_validate(settings).build(8)
    assert isinstance(encoder, GruEncoder)
    clips = frames(5, 1, 8, dim=8)
    padded = series(clips)
    padded.values[0, 5:] = 9.0
    for clip, own in zip(clips, embedded(encoder, padded, "frozen"), strict=True):
        hidden = F.normalize(encoder.gru(encoder.linear(clip))[0], dim=-1)
        whole = encoder.gru(encoder.linear(clip))[0].mean(0)
        expected = hidden if embedding == "frames" else F.normalize(whole, dim=-1)
        assert torch.allclose(own, expected, atol=1e-5)
    assert encoder.parts().keys() == {"linear", "gru"}

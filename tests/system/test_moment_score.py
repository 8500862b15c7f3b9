"""Scores of frames for a query, losses for moments, and the encoder of frames."""

import dataclasses
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
import torch.nn.functional as F
from labellings import weights_of
from served import Letters, model_of

from data_tools.errors import DataError, KitError
from data_tools.manifest import Clip
from data_tools.moments import Moment
from system.audio.logmel import LogMel
from system.batches.items import Item, make_moment_items
from system.features.bank import Bank
from system.features.extract import Features
from system.losses.terms import BatchScores, FrameCrossEntropy, FrameScores, TwoState
from system.models.audio.heads import FrameTransformer
from system.models.batch import Series
from system.models.embeddings import Embedded, Ragged
from system.models.scores import MomentScore
from system.moments.labellings import log_likelihood
from system.moments.windows import Grid, label_frames
from system.ranking.windows import FrameSeries, fit_score
from system.training.validation import MomentValidation

LOGMEL = LogMel(kind="logmel", sample_rate=16_000, bands=8, window_seconds=0.04, hop_seconds=0.02, stack=1)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def require_moment_score(scale: float, offset: float, enter: float, leave: float) -> MomentScore:
    score = MomentScore()
    for name, value in (("scale", scale), ("offset", offset), ("enter", enter), ("leave", leave)):
        getattr(score, name).data.fill_(value)
    return score


def test_moment_frame_scores_match_hand_values() -> None:
    """Cosines 1, 0 and -0.6, and 0 of a frame of zeros: 2 x cosine - 1."""
    clips = Embedded(torch.tensor([[[3.0, 0], [0, 5], [-3, 4], [0, 0]]]), torch.tensor([4]))
    score = require_moment_score(2, -1, 0, 0)
    cosines, lengths = score.cosines(clips, Embedded(torch.tensor([[7.0, 0]])))
    assert score.weights(cosines).scores[0].tolist() == pytest.approx([1.0, -1.0, -2.2, -1.0])
    assert lengths.tolist() == [4]


def test_clip_score_is_the_log_odds_that_the_recording_contains_a_moment() -> None:
    score = require_moment_score(3.0, -1.0, -0.5, 0.7)
    clips, captions = Embedded(drawn(2, 5, 6), torch.tensor([5, 3])), Embedded(drawn(3, 6, seed=1))
    with torch.inference_mode():
        found = score(clips, captions)
        ragged = Ragged(torch.cat([clips.values[0], clips.values[1, :3]]), clips.lengths)
        assert torch.allclose(score(ragged, captions), found, atol=1e-6)
        for row, length in enumerate([5, 3]):
            for column in range(3):
                e = 3 * F.cosine_similarity(clips.values[row, :length], captions.values[column][None]) - 1
                total = sum(weights_of(e.double().numpy(), -0.5, 0.7).values())
                assert float(found[row, column]) == pytest.approx(math.log(total - 1), abs=1e-4)


def test_extreme_frame_scores_give_finite_clip_scores() -> None:
    clips, captions = Embedded(torch.zeros(1, 4, 2), torch.tensor([4])), Embedded(torch.ones(1, 2))
    for offset in (-200.0, 200.0):
        score = require_moment_score(1.0, offset, -50.0, -50.0)
        found = score(clips, captions)
        found.sum().backward()
        assert torch.isfinite(found).all()
        assert score.offset.grad is not None
        assert math.isfinite(float(score.offset.grad))


def batch(scores: torch.Tensor, lengths: list[int], labels: torch.Tensor) -> BatchScores:
    frames = FrameScores(scores, torch.tensor(lengths), labels, torch.tensor(-1.0), torch.tensor(0.5))
    items = len(scores)
    each = torch.zeros(items, items)
    nothing = torch.eye(items, dtype=torch.bool)
    return BatchScores(each, torch.arange(items), nothing, None, lambda: each, lambda: each, frames=frames)


def test_moment_losses_match_hand_values() -> None:
    """One clip of two frames, the second heard: log Z = log(1 + e^(s0 + leave) + e^(s1 + enter) + e^(s0 + s1))."""
    s0, s1 = 0.3, 0.8
    labels = torch.tensor([[False, True, False]])
    scores = batch(torch.tensor([[s0, s1, 9.0]]), [2], labels)
    log_z = math.log(1 + math.exp(s0 + 0.5) + math.exp(s1 - 1) + math.exp(s0 + s1))
    whole, per_frame = (TwoState(kind="two_state", weight=1, per_frame=one) for one in (False, True))
    assert float(whole.value(scores)) == pytest.approx(log_z - (s1 - 1), abs=1e-6)
    assert float(per_frame.value(scores)) == pytest.approx((log_z - (s1 - 1)) / 2, abs=1e-6)
    entropy = (math.log(1 + math.exp(s0)) + math.log(1 + math.exp(-s1))) / 2
    found = FrameCrossEntropy(kind="frame_cross_entropy", weight=1).value(scores)
    assert float(found) == pytest.approx(entropy, abs=1e-6)


def test_loss_of_the_two_state_model_with_zero_transition_weights_equals_cross_entropy() -> None:
    labels = drawn(3, 7, seed=2) > 0
    lengths = [7, 4, 1]
    for row, length in enumerate(lengths):
        labels[row, length:] = False
    free = batch(drawn(3, 7), lengths, labels)
    assert free.frames is not None
    frames = free.frames._replace(enter=torch.tensor(0.0), leave=torch.tensor(0.0))
    free = dataclasses.replace(free, frames=frames)
    likelihood = TwoState(kind="two_state", weight=1, per_frame=True).value(free)
    entropy = FrameCrossEntropy(kind="frame_cross_entropy", weight=1).value(free)
    assert float(likelihood) == pytest.approx(float(entropy), abs=1e-6)


@pytest.mark.parametrize("positions", [4, 64])
def test_frame_transformer_ignores_padding(positions: int) -> None:
    """A clip of 9 frames is cut into windows of four positions; the last one has one frame."""
    torch.manual_seed(0)
    settings = FrameTransformer(
        kind="frame_transformer", experts={"logmel": LOGMEL}, width=16, layers=2, heads=2, ffn_dim=24,
        max_positions=positions, dropout=0.1, embedding="frames",
    )  # fmt: skip
    encoder = settings.build(10).eval()
    values, lengths = drawn(3, 13, 8), torch.tensor([13, 9, 2])
    values[1, 9:] = 1e4
    with torch.inference_mode():
        together = encoder({"logmel": Series(values, lengths)})
        assert together.values.shape == (3, 13, 10)
        for row, length in enumerate(lengths.tolist()):
            alone = encoder({"logmel": Series(values[row : row + 1, :length], lengths[row : row + 1])})
            assert torch.allclose(together.values[row, :length], alone.values[0], atol=1e-5)
            assert not together.values[row, length:].any()
    assert settings.trained_parts.keys() == encoder.parts().keys()


def test_frame_transformer_with_max_positions_4_attends_only_within_blocks_of_4_frames() -> None:
    settings = FrameTransformer(
        kind="frame_transformer", experts={"logmel": LOGMEL}, width=16, layers=1, heads=2, ffn_dim=24,
        max_positions=4, dropout=0.0, embedding="frames",
    )  # fmt: skip
    torch.manual_seed(0)
    encoder, values = settings.build(10).eval(), drawn(1, 8, 8)
    with torch.inference_mode():
        before = encoder({"logmel": Series(values, torch.tensor([8]))}).values[0]
        for frame, window in ((3, range(4)), (4, range(4, 8))):
            other = values.clone()
            other[0, frame] += drawn(8, seed=1)
            changed = (encoder({"logmel": Series(other, torch.tensor([8]))}).values[0] - before).abs().amax(1) > 1e-5
            assert changed.tolist() == [n in window for n in range(8)]


def test_training_items_of_moments_contain_their_windows() -> None:
    clip = Clip(id="c", path="c.wav", captions=[])  # type: ignore[call-arg]
    heard = Moment(id="1", text="A dog barks", clip="c", windows=[(1.0, 2.0)])
    elsewhere = Moment(id="2", text="A dog barks", clip="d", windows=[(1.0, 2.0)])
    assert make_moment_items([clip], [heard, elsewhere]) == [Item(clip, ("A dog barks",), (0,), None, ((1.0, 2.0),))]
    with pytest.raises(KitError, match="moment 3 has no windows"):
        make_moment_items([clip], [Moment(id="3", text="A dog barks", clip="c", windows=None)])


def test_training_windows_after_the_end_of_a_recording_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    clip = Clip(id="c", source="x", split="train", path="c.wav", captions=[], seconds=60.0)
    some = Moment(id="1", text="A dog barks", clip="c", windows=[(70.0, 80.0), (59.0, 62.0), (60.0, 61.0)])
    none = Moment(id="2", text="A cat mews", clip="c", windows=[(60.5, 61.0)])
    unknown = replace(clip, seconds=None)
    assert [item.windows for item in make_moment_items([clip], [some, none])] == [((59.0, 62.0),)]
    assert "left out 3 windows" in caplog.text
    assert [len(item.windows) for item in make_moment_items([unknown], [some, none])] == [3, 1]
    with pytest.raises(DataError, match="windows begin"):
        make_moment_items([clip], [none])


def test_validation_loss_is_the_mean_over_moments(tmp_path: Path) -> None:
    """Scores: 2 x cosine - 1, in batches of two moments and one. Every frame of the first two is right by a score of 1,
    which costs log(1 + 1/e); every frame of the third is wrong by as much, which costs 1 more."""
    bank = Bank(tmp_path / "frames", 3, "float32", {})
    letters = torch.eye(3)
    known, silent = letters[[0, 1]], torch.zeros(2, 3)
    tiny.store_all(bank, [("known", known.numpy()), ("silent", silent.numpy())])
    clips = [Clip(id=name, path=name, captions=[]) for name in ("known", "silent")]  # type: ignore[call-arg]
    asked = [("known", "a", (0.0, 1.0)), ("known", "b", (1.0, 2.0)), ("silent", "b", (0.0, 2.0))]
    moments = [Moment(id=str(n), text=text, clip=clip, windows=[at]) for n, (clip, text, at) in enumerate(asked)]
    term = FrameCrossEntropy(kind="frame_cross_entropy", weight=1)
    monitor = SimpleNamespace(metrics=["loss"], data=["validation"])
    stage: Any = SimpleNamespace(batch_size=2, losses=[term], monitor=monitor)
    features = Features({"any": bank}, {clip.id: clip.id for clip in clips}, grids={"any": Grid(1.0, 0.5)})
    validation = MomentValidation({"validation": (clips, moments)}, stage, features)
    model: Any = model_of(Letters())
    model.score, model.temperature = require_moment_score(2.0, -1.0, 0.0, 0.0), None
    embedded = Ragged(torch.cat([known, silent]), torch.tensor([2, 2]))
    with torch.no_grad():
        found = validation.metrics(model, embedded, model.text.embed_batch(validation.texts))
    assert found == {"loss": pytest.approx(math.log(1 + math.exp(-1)) + 1 / 3, abs=1e-6)}


def test_fitted_moment_model_has_the_highest_likelihood_per_frame() -> None:
    """However long a recording is, it counts as any other: no number may be moved without a loss."""
    values = [drawn(length, seed=length) for length in (4, 24)]
    windows = [[(1.0, 3.0)], [(2.0, 5.0), (9.0, 10.0), (20.0, 22.0)]]
    moments = [Moment(id=str(n), text="a", clip="c", windows=each) for n, each in enumerate(windows)]
    grid = Grid(1.0, 0.5)
    series = FrameSeries(values, [grid.edges(len(one), float(len(one))) for one in values], [grid] * 2)
    fitted = fit_score(MomentScore(), series, moments, "a model")

    @torch.inference_mode()
    def cost(**moved: float) -> float:
        score = require_moment_score(
            **{name: value + moved.get(name, 0.0) for name, value in fitted.trained_numbers().items()}
        )
        total = 0.0
        for each, known in zip(values, windows, strict=True):
            labels, length = torch.from_numpy(label_frames(known, len(each), grid))[None], torch.tensor([len(each)])
            found = log_likelihood(score.weights(each).scores[None], length, labels, score.enter, score.leave)
            total -= found.item() / len(each)
        return total

    for name in fitted.trained_numbers():
        assert cost() < min(cost(**{name: step}) for step in (-0.05, 0.05)), name

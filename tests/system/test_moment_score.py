"""Scores of frames for a query, losses for moments, and the encoder of frames."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from labellings import as_batch, chains, moments_of, weights_of
from loss_batches import batch_of
from served import Letters, model_of
from window_tables import frame_posteriors, moment_posteriors

from data_tools.errors import KitError
from data_tools.manifest import Clip
from data_tools.moments import Moment
from system.audio.logmel import LogMel
from system.batches.items import Item, make_moment_items
from system.features.bank import Bank
from system.features.extract import Features
from system.losses.terms import BatchScores, FrameCrossEntropy, FrameScores, TwoState
from system.models.audio.heads import FrameTransformer
from system.models.batch import Embedded, Ragged, Series
from system.models.scores import BoundaryScore, MomentScore
from system.moments.labellings import length_mask, log_likelihood, log_partition, raise_scores
from system.moments.windows import Grid, label_frames
from system.ranking.windows import QueryFrames, fit_score
from system.training.validation import MomentValidation

LOGMEL = LogMel(kind="logmel", sample_rate=16_000, bands=8, window_seconds=0.04, hop_seconds=0.02, stack=1)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def numbered(score: MomentScore, scale: float, offset: float, enter: float, leave: float) -> MomentScore:
    for name, value in (("scale", scale), ("offset", offset), ("enter", enter), ("leave", leave)):
        getattr(score, name).data.fill_(value)
    return score


def test_frame_and_clip_scores_match_hand_values_and_are_finite():
    # Cosines 1, 0 and -0.6, and 0 of a frame of zeros: 2 x cosine - 1.
    clips = Embedded(torch.tensor([[[3.0, 0], [0, 5], [-3, 4], [0, 0]]]), torch.tensor([4]))
    score = numbered(MomentScore(), 2, -1, 0, 0)
    cosines, lengths = score.cosines(clips, Embedded(torch.tensor([[7.0, 0]])))
    assert score.weights(cosines).scores[0].tolist() == pytest.approx([1.0, -1.0, -2.2, -1.0])
    assert lengths.tolist() == [4]
    clips, captions = Embedded(torch.zeros(1, 4, 2), torch.tensor([4])), Embedded(torch.ones(1, 2))
    for offset in (-200.0, 200.0):
        score = numbered(MomentScore(), 1.0, offset, -50.0, -50.0)
        found = score(clips, captions)
        found.sum().backward()
        assert torch.isfinite(found).all()
        assert math.isfinite(float(score.offset.grad))


@pytest.mark.parametrize("kind", [MomentScore, lambda: BoundaryScore(6)])
def test_clip_score_is_the_log_odds_that_the_recording_contains_a_moment(kind):
    torch.manual_seed(0)
    score = numbered(kind(), 3.0, -1.0, -0.5, 0.7)
    clips, captions = Embedded(drawn(2, 5, 6), torch.tensor([5, 3])), Embedded(drawn(3, 6, seed=1))
    with torch.inference_mode():
        found = score(clips, captions)
        ragged = Ragged([clips.values[0], clips.values[1, :3]])
        assert torch.allclose(score(ragged, captions), found, atol=1e-6)
        for row, length in enumerate([5, 3]):
            alone = Embedded(clips.values[row : row + 1, :length], torch.tensor([length]))
            for column in range(3):
                weights = score.weights(score.cosines(alone, captions.rows([column]))[0])
                total = sum(weights_of(*(one.double().squeeze(0).numpy() for one in weights)).values())
                assert float(found[row, column]) == pytest.approx(math.log(total - 1), abs=1e-4)


def batch(scores: torch.Tensor, lengths: list[int], labels: torch.Tensor, enter: float, leave: float) -> BatchScores:
    frames = FrameScores(scores, torch.tensor(lengths), labels, torch.tensor(enter), torch.tensor(leave))
    return batch_of(torch.zeros(len(scores), len(scores)), frames=frames)


def test_moment_losses_match_hand_values_and_cross_entropy_without_transition_weights():
    whole, per_frame = (TwoState(kind="two_state", weight=1, per_frame=one) for one in (False, True))
    cross_entropy = FrameCrossEntropy(kind="frame_cross_entropy", weight=1)
    # One clip of two frames, the second heard: log Z = log(1 + e^(s0 + leave) + e^(s1 + enter) + e^(s0 + s1)).
    s0, s1 = 0.3, 0.8
    scores = batch(torch.tensor([[s0, s1, 9.0]]), [2], torch.tensor([[False, True, False]]), -1.0, 0.5)
    log_z = math.log(1 + math.exp(s0 + 0.5) + math.exp(s1 - 1) + math.exp(s0 + s1))
    assert float(whole.value(scores)) == pytest.approx(log_z - (s1 - 1), abs=1e-6)
    assert float(per_frame.value(scores)) == pytest.approx((log_z - (s1 - 1)) / 2, abs=1e-6)
    entropy = (math.log(1 + math.exp(s0)) + math.log(1 + math.exp(-s1))) / 2
    assert float(cross_entropy.value(scores)) == pytest.approx(entropy, abs=1e-6)
    lengths = [7, 4, 1]
    labels = (drawn(3, 7, seed=2) > 0) & length_mask(torch.tensor(lengths), 7)
    free = batch(drawn(3, 7), lengths, labels, 0.0, 0.0)
    assert float(per_frame.value(free)) == pytest.approx(float(cross_entropy.value(free)), abs=1e-6)


@pytest.mark.parametrize("positions", [4, 64])
def test_frame_transformer_ignores_padding_and_attends_only_within_windows(positions):
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
        for frame in (3, 4):
            values[0, frame] += drawn(8, seed=1)
            after = encoder({"logmel": Series(values, lengths)})
            changed = (after.values - together.values).abs().amax(2)[0] > 1e-5
            assert changed.tolist() == [n // positions == frame // positions for n in range(13)]
            together = after
    assert settings.trained_parts.keys() == encoder.parts().keys()


def test_training_items_contain_their_windows_but_none_after_the_end(caplog):
    clip = Clip(id="c", path="c.wav", captions=[])  # type: ignore[call-arg]
    heard = Moment(id="1", text="A dog barks", clip="c", windows=[(1.0, 2.0)])
    elsewhere = Moment(id="2", text="A dog barks", clip="d", windows=[(1.0, 2.0)])
    assert make_moment_items([clip], [heard, elsewhere]) == [Item(clip, ("A dog barks",), (0,), None, ((1.0, 2.0),))]
    with pytest.raises(KitError, match="moment 3 has no windows"):
        make_moment_items([clip], [Moment(id="3", text="A dog barks", clip="c", windows=None)])
    clip = Clip(id="c", source="x", split="train", path="c.wav", captions=[], seconds=60.0)
    some = Moment(id="1", text="A dog barks", clip="c", windows=[(70.0, 80.0), (59.0, 62.0), (60.0, 61.0)])
    none = Moment(id="2", text="A cat mews", clip="c", windows=[(60.5, 61.0)])
    unknown = replace(clip, seconds=None)
    assert [item.windows for item in make_moment_items([clip], [some, none])] == [((59.0, 62.0),)]
    assert "left out 3 windows" in caplog.text
    assert [len(item.windows) for item in make_moment_items([unknown], [some, none])] == [3, 1]
    with pytest.raises(KitError, match="windows begin"):
        make_moment_items([clip], [none])


def test_validation_loss_is_the_mean_over_moments(tmp_path):
    """Scores: 2 x cosine - 1, in batches of two moments and one. Every frame of the first two is right by a score of 1,
    which costs log(1 + 1/e); every frame of the third is wrong by as much, which costs 1 more."""
    bank = Bank(tmp_path / "frames", 3, "float32", {})
    known, silent = torch.eye(3)[:2], torch.zeros(2, 3)
    tiny.store_all(bank, [("known", known.numpy()), ("silent", silent.numpy())])
    clips = [Clip(id=name, path=name, captions=[]) for name in ("known", "silent")]  # type: ignore[call-arg]
    asked = [("known", "a", (0.0, 1.0)), ("known", "b", (1.0, 2.0)), ("silent", "b", (0.0, 2.0))]
    moments = [Moment(id=str(n), text=text, clip=clip, windows=[at]) for n, (clip, text, at) in enumerate(asked)]
    term = FrameCrossEntropy(kind="frame_cross_entropy", weight=1)
    monitor = SimpleNamespace(metrics=["loss"], data=["validation"])
    stage: Any = SimpleNamespace(batch_size=2, losses=[term], monitor=monitor, captions_per_clip=None)
    features = Features({"any": bank}, {clip.id: clip.id for clip in clips}, grids={"any": Grid(1.0, 0.5)})
    validation = MomentValidation(make_moment_items(clips, moments), stage, features)
    model: Any = model_of(Letters())
    model.score, model.temperature = numbered(MomentScore(), 2.0, -1.0, 0.0, 0.0), None
    embedded = Ragged([known, silent])
    with torch.no_grad():
        found = validation.metrics(model, embedded, model.text.embed_batch(validation.texts))
    assert found == {"loss": pytest.approx(math.log(1 + math.exp(-1)) + 1 / 3, abs=1e-6)}


def test_fitted_moment_model_has_the_highest_likelihood_per_frame():
    """However long a recording is, it counts as any other: no number may be moved without a loss."""
    values, windows = [drawn(4), drawn(12)], [[(1.0, 3.0)], [(2.0, 5.0), (9.0, 10.0)]]
    moments = [Moment(id=str(n), text="a", clip="c", windows=each) for n, each in enumerate(windows)]
    grid = Grid(1.0, 0.5)
    series = [QueryFrames(one, grid, float(len(one))) for one in values]
    fitted = fit_score(MomentScore(), series, moments, "a model").trained_numbers()

    @torch.inference_mode()
    def cost(numbers: dict[str, float]) -> float:
        score, total = numbered(MomentScore(), **numbers), 0.0
        for each, known in zip(values, windows, strict=True):
            labels, length = torch.from_numpy(label_frames(known, len(each), grid))[None], torch.tensor([len(each)])
            found = log_likelihood(score.weights(each).scores[None], length, labels, score.enter, score.leave)
            total -= found.item() / len(each)
        return total

    least = cost(fitted)
    for name, value in fitted.items():
        assert least < min(cost(fitted | {name: value + step}) for step in (-0.05, 0.05)), name


def test_boundary_weights_match_hand_values():
    """W gives the change of frames for entering, and their sum for leaving; frame 0 has a frame of zeros before it."""
    score = BoundaryScore(2)
    with torch.no_grad():
        score.changes.weight.copy_(torch.eye(4))
        score.changes.bias.zero_()
        score.rate.fill_(0.5)
    clips = Embedded(torch.tensor([[[1.0, 0], [1, 2], [-2, 2]]]), torch.tensor([3]))
    cosines, lengths = score.cosines(clips, Embedded(torch.tensor([[0.0, 9]])))
    weights = score.weights(cosines)
    assert lengths.tolist() == [3]
    frames = [0, 2 / math.sqrt(5), 1 / math.sqrt(2)]
    assert weights.scores[0].tolist() == pytest.approx([10 * one - 3 for one in frames], abs=1e-5)
    entering = [0, 1, 0]  # changes (1, 0), (0, 2), (-3, 0)
    assert weights.enter[0].tolist() == pytest.approx([2.5 * one - 2 for one in entering], abs=1e-5)
    leaving = [0, 2 / math.sqrt(8), 4 / math.sqrt(17)]  # sums (1, 0), (2, 2), (-1, 4)
    assert weights.leave[0].tolist() == pytest.approx([2.5 * one - 2 for one in leaving], abs=1e-5)


def test_fitting_a_boundary_model_changes_its_scalar_parameters_but_not_its_layers():
    """Cosines of entering and leaving are high where moments begin and end, so that the fitted factor is above 0."""
    torch.manual_seed(0)
    score, grid = BoundaryScore(2), Grid(1.0, 0.5)
    values, moments = [], []
    for number in range(20):
        start = 2 + number % 5
        rows = 0.3 * torch.randn(3, 12 + number % 3)
        rows[0, start : start + 4] += 0.3
        rows[[1, 2], [start, start + 4]] += 0.6
        values.append(rows)
        moments.append(Moment(id=str(number), text="?", clip="c", windows=[(float(start), float(start + 4))]))
    series = [QueryFrames(one, grid, 20.0) for one in values]
    fitted = fit_score(score, series, moments, "a model")
    numbers = fitted.trained_numbers()
    assert numbers.keys() == {"scale", "offset", "enter", "leave", "rate"}
    assert (numbers["rate"] > 0.1, numbers["scale"] > 1) == (True, True)
    assert torch.equal(fitted.changes.weight, score.changes.weight)
    assert score.trained_numbers() == pytest.approx({"scale": 10, "offset": -3, "enter": -2, "leave": -2, "rate": 1})


@pytest.mark.parametrize("per_frame", [False, True])
def test_posteriors_of_the_two_state_model_match_sums_over_all_labellings_of_frames(per_frame):
    """The weights of entering and leaving are one number each, or those of a boundary model, one per frame."""
    lengths = [3, 9, 1, 6, 2]
    some = chains(lengths, per_frame)
    asked = as_batch(some)
    total, inside, tables = log_partition(*asked), frame_posteriors(*asked), moment_posteriors(*asked).exp()
    for row, length in enumerate(lengths):
        weights = weights_of(*some[row])
        partition = sum(weights.values())
        assert float(total[row]) == pytest.approx(np.log(partition), rel=1e-12, abs=1e-12)
        for labels in list(weights)[:: max(1, len(weights) // 50)]:
            chosen = torch.zeros(asked[0].shape, dtype=torch.bool)
            chosen[row, :length] = torch.tensor(labels)
            found = log_likelihood(*asked[:2], chosen, *asked[2:])
            assert float(found[row]) == pytest.approx(np.log(weights[labels] / partition), abs=1e-9)
            assert torch.isfinite(found).all()
        table, frames = np.zeros((9, 9)), np.zeros(9)
        for labels, value in weights.items():
            frames[:length] += np.array(labels) * value / partition
            for first, last in moments_of(labels):
                table[first, last] += value / partition
        assert np.abs(tables[row].numpy() - table).max() < 1e-9
        assert np.abs(inside[row].numpy() - frames).max() < 1e-9


@pytest.mark.parametrize("probability", [0.5, 0.999])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("per_frame", [False, True])
def test_scores_raised_to_a_given_probability_of_a_moment_give_exactly_this_probability(per_frame, share, probability):
    """A boundary model gives a share of the rise to the frames, and the rest to entering. The last is heard already."""
    some = [(scores - 8, enter, leave) for scores, enter, leave in chains((5, 2, 8), per_frame)]
    some.append((some[0][0] + 17, *some[0][1:]))
    rises = []
    for (scores, enter, leave), *rows in zip(some, *raise_scores(*as_batch(some), probability, share), strict=True):
        more, entered = (row[: len(scores)].numpy() for row in rows)
        rise = (more - scores)[0] + (entered - enter)[0]
        assert more == pytest.approx(scores + share * rise, abs=1e-9)
        assert entered == pytest.approx(enter + (1 - share) * rise, abs=1e-9)
        found = 1 - 1 / sum(weights_of(more, entered, leave).values())
        assert found >= probability - 1e-12
        assert rise == 0 or found == pytest.approx(probability, abs=1e-6)
        rises.append(rise)
    assert [rise > 0 for rise in rises] == [True, True, True, False]


def test_posteriors_match_hand_values_and_keep_order_at_extreme_scores():
    # Two frames of score log 2 and log 3, enter log 5, leave log 7: 00 weighs 1, 10 2 x 7, 01 3 x 5, 11 2 x 3.
    scores, (enter, leave) = torch.log(torch.tensor([[2.0, 3.0]])), torch.log(torch.tensor([5.0, 7.0]))
    asked = scores.double(), torch.tensor([2]), enter.double(), leave.double()
    assert float(log_partition(*asked).exp()) == pytest.approx(1 + 14 + 15 + 6)
    table = moment_posteriors(*asked)[0].exp() * 36
    assert table.tolist() == [[pytest.approx(14), pytest.approx(6)], [0, pytest.approx(15)]]
    assert (frame_posteriors(*asked)[0] * 36).tolist() == [pytest.approx(20), pytest.approx(21)]
    # log(1 + e^x) of one frame in float32 is about e^x for small values.
    scores = torch.tensor([[-16.0], [-17.0], [-18.0], [-40.0]])
    found = log_partition(scores, torch.ones(4, dtype=torch.long), torch.tensor(-2.0), torch.tensor(-2.0))
    assert found.tolist() == pytest.approx(scores[:, 0].double().exp().tolist(), rel=1e-5)
    scores = torch.tensor([[500.0, -500.0, 500.0, 0.0]])
    asked = scores, torch.tensor([4]), torch.tensor(-50.0), torch.tensor(-50.0)
    assert torch.isfinite(log_partition(*asked)).all()
    assert frame_posteriors(*asked)[0, :3].tolist() == [1.0, pytest.approx(0.0), 1.0]


def test_gradients_of_the_two_state_model_match_frame_posteriors_and_finite_differences():
    scores, *rest = as_batch(chains((6, 4, 1), False))
    scores.requires_grad_()
    log_partition(scores, *rest).sum().backward()
    assert (scores.grad - frame_posteriors(scores.detach(), *rest)).abs().max() < 1e-12
    for per_frame in (False, True):
        scores, lengths, *moves = (one.nan_to_num() for one in as_batch(chains((6, 4, 1), per_frame)))
        leaves, labels = [one.requires_grad_() for one in (scores, *moves)], torch.arange(6) % 3 == 1
        likelihood = lambda e, a, c: log_likelihood(e, lengths, labels & length_mask(lengths, 6), a, c)  # noqa: B023, E731
        assert torch.autograd.gradcheck(likelihood, leaves)

"""The likelihood and the posteriors of labellings, against all labellings one after the other."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from labellings import as_batch, chain, moments_of, weights_of
from window_tables import frame_posteriors, moment_posteriors

from system.moments.labellings import log_likelihood, log_partition, raise_scores

F64 = torch.float64


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


@pytest.mark.parametrize("per_frame", [False, True])
@pytest.mark.parametrize("frames", range(1, 11))
def test_posteriors_of_the_two_state_model_match_sums_over_all_labellings_of_frames(
    frames: int, per_frame: bool
) -> None:
    """The weights of entering and leaving are one number each, or those of a boundary model, one per frame."""
    weights = weights_of(*chain(frames, per_frame))
    partition = sum(weights.values())
    asked = as_batch(*chain(frames, per_frame))
    assert float(log_partition(*asked)) == pytest.approx(np.log(partition), rel=1e-12, abs=1e-12)
    for labels in list(weights)[:: max(1, len(weights) // 50)]:
        chosen = torch.tensor([labels + (0,) * 3], dtype=torch.bool)
        found = log_likelihood(*asked[:2], chosen, *asked[2:])
        assert float(found) == pytest.approx(np.log(weights[labels] / partition), abs=1e-9)
    table, inside = np.zeros((frames, frames)), np.zeros(frames)
    for labels, value in weights.items():
        inside += np.array(labels) * value / partition
        for first, last in moments_of(labels):
            table[first, last] += value / partition
    assert np.abs(moment_posteriors(*asked)[0, :frames, :frames].exp().numpy() - table).max() < 1e-9
    assert np.abs(frame_posteriors(*asked)[0, :frames].numpy() - inside).max() < 1e-9


@pytest.mark.parametrize("frames", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("probability", [0.5, 0.99, 0.999])
def test_frame_scores_raised_by_a_constant_reach_the_given_probability_of_a_moment(
    frames: int, probability: float
) -> None:
    """The probability of any moment by all labellings; a recording that is heard enough keeps its scores."""
    rng = np.random.default_rng(frames)
    enter, leave = rng.normal(size=2)
    scores = np.stack([rng.normal(size=frames) - 6, rng.normal(size=frames) + 9])
    settings = torch.tensor([frames, frames]), tensor(enter)[0], tensor(leave)[0]
    raised = raise_scores(torch.from_numpy(scores), *settings, probability)[0].numpy()
    for before, after in zip(scores, raised, strict=True):
        rise = after - before
        assert np.ptp(rise) < 1e-12
        by_hand = [1 - 1 / sum(weights_of(values, enter, leave).values()) for values in (before, after)]
        if by_hand[0] >= probability:
            assert rise.max() == 0
        else:
            assert by_hand[1] == pytest.approx(probability, abs=1e-6)
            assert by_hand[1] >= probability - 1e-12
    assert (raised[0] - scores[0]).max() > 0


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("frames", [2, 5, 8])
def test_scores_raised_to_a_given_probability_of_a_moment_give_exactly_this_probability(
    frames: int, share: float
) -> None:
    """A boundary model gives a share of the rise to the frames, and the rest to entering."""
    scores, enter, leave = chain(frames, True)
    scores = scores - 8
    more, entered = (one[0, :frames].numpy() for one in raise_scores(*as_batch(scores, enter, leave), 0.9, share))
    rises = np.concatenate([more - scores, entered - enter])
    d = rises[0] / share if share else rises[-1]
    assert d > 1
    assert rises == pytest.approx([share * d] * frames + [(1 - share) * d] * frames, abs=1e-9)
    assert 1 - 1 / sum(weights_of(more, entered, leave).values()) == pytest.approx(0.9, abs=1e-6)


def test_frame_scores_rise_more_for_a_higher_given_moment_probability_and_ignore_padding() -> None:
    scores = torch.tensor([[-3.0, -4.0, -2.0, 50.0], [-5.0, -5.0, -5.0, -5.0]])
    lengths = torch.tensor([3, 4])
    rises = []
    for probability in (0.2, 0.5, 0.9, 0.999):
        raised, enter = raise_scores(scores, lengths, *tensor(-1, -1), probability)
        assert (enter == -1).all()
        rises.append((raised - scores)[:, 0])
        alone, _ = raise_scores(scores[:1, :3], lengths[:1], *tensor(-1, -1), probability)
        assert torch.equal(raised[0, :3], alone[0])
    assert all((after > before).all() for before, after in pairwise(rises))


def test_posteriors_of_the_two_state_model_for_two_frames_match_hand_values() -> None:
    """Two frames of score log 2 and log 3, enter log 5, leave log 7: 00 weighs 1, 10 2 x 7, 01 3 x 5, 11 2 x 3."""
    scores, lengths = torch.log(tensor(2, 3))[None], torch.tensor([2])
    enter, leave = torch.log(tensor(5, 7))
    assert float(log_partition(scores, lengths, enter, leave).exp()) == pytest.approx(1 + 14 + 15 + 6)
    table = moment_posteriors(scores, lengths, enter, leave)[0].exp() * 36
    assert table.tolist() == [[pytest.approx(14), pytest.approx(6)], [0, pytest.approx(15)]]
    inside = frame_posteriors(scores, lengths, enter, leave)[0] * 36
    assert inside.tolist() == [pytest.approx(20), pytest.approx(21)]


def test_gradient_of_the_log_partition_of_the_two_state_model_is_the_frame_posterior() -> None:
    generator = torch.Generator().manual_seed(0)
    each = [torch.randn(3, 6, dtype=F64, generator=generator, requires_grad=True) for _ in range(3)]
    lengths, labels = torch.tensor([6, 4, 1]), torch.rand(3, 6, generator=generator) < 0.5
    assert torch.autograd.gradcheck(lambda s, a, c: log_likelihood(s, lengths, labels, a, c), each)
    scores, numbers = each[0], [torch.tensor(value, dtype=F64, requires_grad=True) for value in (-1.5, 0.5)]
    assert torch.autograd.gradcheck(lambda s, a, c: log_likelihood(s, lengths, labels, a, c), (scores, *numbers))
    scores.grad, (enter, leave) = None, numbers
    log_partition(scores, lengths, enter, leave).sum().backward()
    assert scores.grad is not None
    expected = frame_posteriors(scores.detach(), lengths, enter.detach(), leave.detach())
    assert (scores.grad - expected).abs().max() < 1e-12, "the gradient of log Z is the posterior of every frame"


def test_two_state_model_ignores_padding_and_other_recordings_of_the_batch() -> None:
    generator = torch.Generator().manual_seed(1)
    lengths = [1, 5, 9, 2]
    rows = [torch.randn(length, generator=generator) * 3 for length in lengths]
    padded = torch.full((4, 11), torch.nan)
    labels = torch.zeros(4, 11, dtype=torch.bool)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
        labels[number, : len(row)] = row > 1
    step = torch.tensor(-2.0), torch.tensor(-1.0)
    together = torch.tensor(lengths)
    for number, row in enumerate(rows):
        alone, length = row[None], torch.tensor([len(row)])
        for function in (log_partition, frame_posteriors, moment_posteriors):
            found = function(padded, together, *step)[number]
            expected = function(alone, length, *step)[0]
            for size in expected.shape:
                assert size == len(row)
            if found.ndim == 2:
                assert bool(torch.isneginf(found[:, len(row) :]).all())
                found = found[: len(row), : len(row)].exp()
                expected = expected.exp()
            elif found.ndim == 1:
                assert not found[len(row) :].any()
                found = found[: len(row)]
            assert (found - expected).abs().max() < 1e-6
        chosen = labels[number : number + 1]
        expected = log_likelihood(alone, length, chosen[:, : len(row)], *step)[0]
        assert log_likelihood(padded, together, labels, *step)[number] == pytest.approx(float(expected), abs=1e-6)
    assert torch.isfinite(log_likelihood(padded, together, labels, *step)).all()


def test_two_state_model_keeps_the_order_of_very_low_scores_in_float32() -> None:
    """log(1 + e^x) of one frame in float32 is about e^x for small values."""
    scores = torch.tensor([[-16.0], [-17.0], [-18.0], [-40.0]])
    found = log_partition(scores, torch.ones(4, dtype=torch.long), torch.tensor(-2.0), torch.tensor(-2.0))
    assert found.tolist() == pytest.approx(scores[:, 0].double().exp().tolist(), rel=1e-5)


def test_posteriors_of_the_two_state_model_are_finite_for_extreme_scores() -> None:
    scores = torch.tensor([[500.0, -500.0, 500.0, 0.0]])
    asked = scores, torch.tensor([4]), torch.tensor(-50.0), torch.tensor(-50.0)
    assert torch.isfinite(log_partition(*asked)).all()
    assert frame_posteriors(*asked)[0, :3].tolist() == [1.0, pytest.approx(0.0), 1.0]

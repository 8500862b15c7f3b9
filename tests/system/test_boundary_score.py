"""Boundaries by frames and sentence, against all labellings one after the other."""

import math

import pytest
import torch
from labellings import weights_of
from window_tables import frame_posteriors, moment_posteriors

from data_tools.moments import Moment
from system.models.embeddings import Embedded, Ragged
from system.models.scores import BoundaryScore
from system.moments.labellings import log_partition, raise_scores
from system.moments.windows import Grid
from system.ranking.windows import FrameSeries, fit_score


def test_equal_transition_weights_per_frame_match_a_constant_weight() -> None:
    scores, lengths = torch.randn(3, 6, dtype=torch.float64), torch.tensor([6, 4, 1])
    numbers = torch.tensor(-1.5, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)
    rows = [one.expand(3, 6) for one in numbers]
    for function in (log_partition, frame_posteriors, moment_posteriors):
        torch.testing.assert_close(function(scores, lengths, *rows), function(scores, lengths, *numbers))


def test_scores_of_each_recording_are_raised_separately_to_the_given_probability() -> None:
    """Two recordings of different scores get different rises."""
    scores = torch.tensor([[-3.0, -4.0], [-9.0, -9.0]])
    more, entered = raise_scores(scores, torch.tensor([2, 2]), torch.tensor(-1.0), torch.tensor(-1.0), 0.9, 0.5)
    assert entered.shape == scores.shape
    assert torch.allclose(more - scores, entered + 1)
    assert (entered[1] > entered[0] + 1).all()


def test_boundary_weights_match_hand_values() -> None:
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


def test_boundary_model_clip_score_is_the_log_odds_that_the_clip_contains_a_moment() -> None:
    torch.manual_seed(0)
    score = BoundaryScore(6)
    clips, captions = Embedded(torch.randn(2, 5, 6), torch.tensor([5, 3])), Embedded(torch.randn(3, 6))
    with torch.inference_mode():
        found = score(clips, captions)
        ragged = Ragged(torch.cat([clips.values[0], clips.values[1, :3]]), clips.lengths)
        assert torch.allclose(score(ragged, captions), found, atol=1e-5)
        for row, length in enumerate([5, 3]):
            alone = Embedded(clips.values[row : row + 1, :length], torch.tensor([length]))
            for column in range(3):
                weights = score.weights(score.cosines(alone, captions.rows([column]))[0])
                total = sum(weights_of(*(one[0].double().numpy() for one in weights)).values())
                assert float(found[row, column]) == pytest.approx(math.log(total - 1), abs=1e-3)


def test_fitting_a_boundary_model_changes_its_scalar_parameters_but_not_its_layers() -> None:
    """Cosines of entering and leaving are high where moments begin and end, so that the fitted factor is above 0."""
    torch.manual_seed(0)
    score, grid = BoundaryScore(2), Grid(1.0, 0.5)
    layer = score.changes.weight.clone()
    values, moments = [], []
    for number in range(20):
        start, size = 2 + number % 5, 12 + number % 3
        rows = 0.3 * torch.randn(3, size)
        rows[0, start : start + 4] += 0.3
        rows[1, start] += 0.6
        rows[2, start + 4] += 0.6
        values.append(rows)
        moments.append(Moment(id=str(number), text="?", clip="c", windows=[(float(start), float(start + 4))]))
    series = FrameSeries(values, [grid.edges(one.shape[1], 20.0) for one in values], [grid] * 20)
    fitted = fit_score(score, series, moments, "a model")
    assert isinstance(fitted, BoundaryScore)
    assert fitted.trained_numbers().keys() == {"scale", "offset", "enter", "leave", "rate"}
    assert fitted.trained_numbers()["rate"] > 0.1
    assert fitted.trained_numbers()["scale"] > 1
    assert torch.equal(fitted.changes.weight, layer)
    assert score.trained_numbers() == pytest.approx({"scale": 10, "offset": -3, "enter": -2, "leave": -2, "rate": 1})

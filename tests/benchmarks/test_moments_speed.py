"""Windows of as many queries as CASTELLA's test split has, and their score; against whole tables of windows."""

import resource
import time

import numpy as np
import pytest
import torch
from timing import best_seconds, report
from window_tables import frame_posteriors, moment_posteriors

from data_tools.moments import Moment
from submission.metrics.moments import score_moments
from system.models.scores import MomentScore
from system.moments.labellings import log_likelihood
from system.moments.windows import (
    OVERLAP_CANDIDATES,
    By,
    Decoding,
    Found,
    Grid,
    _select_windows,
    label_frames,
    overlap_windows,
    similar_ranges,
)
from system.ranking.windows import FITTED_TOGETHER, FrameSeries, find_windows, fit_score

pytestmark = pytest.mark.benchmark

QUERIES, SECONDS = 1_347, 300


@pytest.mark.parametrize("by", ["overlap", "thresholds"])
@pytest.mark.parametrize("rate", [1, 2])
def test_moment_search_of_the_size_of_the_castella_test_split_takes_at_most_60_s_and_1_gb(rate: int, by: By) -> None:
    """Random scores of frames, 1 and 2 a second: within 60 s and 1 GB on two cores; scoring within 1 s."""
    frames, generator, grid = rate * SECONDS, torch.Generator().manual_seed(rate), Grid(1 / rate, 0.5 / rate)
    values = list(0.2 * torch.randn(QUERIES, frames, generator=generator))
    series = FrameSeries(values, [grid.edges(frames, SECONDS)] * QUERIES, [grid] * QUERIES)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    located = find_windows([(MomentScore(), series)], Decoding(), by)
    found = {str(number): [list(window) for window in one.windows] for number, one in enumerate(located)}
    decoding = time.perf_counter() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    rng = np.random.default_rng(0)
    truth = {}
    for number in range(QUERIES):
        starts = rng.integers(0, SECONDS - 10, 3)
        truth[str(number)] = [[int(start), int(start) + 1 + int(rng.integers(9))] for start in starts]
    began = time.perf_counter()
    score_moments(found, truth)
    scoring = time.perf_counter() - began
    print(f"\n{by}, {rate} a second: {decoding:.1f} s, {grown:.0f} MiB more; scored in {scoring:.2f} s")
    assert decoding < 60
    assert grown < 1000
    assert scoring < 1


def by_whole_tables(values: list[torch.Tensor], edges: np.ndarray) -> list[list[Found]]:
    """Windows of overlap from tables of T x T numbers, cumulated and compared as wholes."""
    numbers, found = MomentScore(), []
    for part in torch.stack(values).double().split(max(1, (1 << 23) // len(values[0]) ** 2)):
        chain = numbers.weights(part).scores.detach(), torch.full((len(part),), part.shape[1])
        frame_posteriors(*chain, numbers.enter.detach(), numbers.leave.detach())
        for table in moment_posteriors(*chain, numbers.enter.detach(), numbers.leave.detach()).numpy():
            candidates = _whole_best(table, edges)
            first, behind = similar_ranges(candidates, edges)
            sums = np.zeros((len(table), len(table) + 1))
            np.cumsum(np.exp(table), axis=1, out=sums[:, 1:])
            frames = np.arange(len(table))
            scores = (sums[frames, behind] - sums[frames, first]).sum(1).clip(0.0, 1.0)
            found.append(overlap_windows(candidates, scores, edges[-1], Decoding()))
    return found


def _whole_best(table: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The 30 best windows of a whole table, (30, 2)."""
    rows, columns = np.nonzero(np.isfinite(table) & (edges[1:] > edges[:-1, None]))
    scores = table[rows, columns]
    chosen = np.nonzero(scores >= np.partition(scores, len(scores) - 1024)[len(scores) - 1024])[0]
    order = chosen[np.argsort(-scores[chosen], kind="stable")]
    wide = Decoding(windows=OVERLAP_CANDIDATES)
    windows = np.stack([edges[rows[order]], edges[columns[order] + 1]], 1)
    best = _select_windows(windows, scores[order], edges[-1], wide)
    return np.array([window[:2] for window in best])


def test_finding_windows_by_overlap_takes_a_third_of_the_time_of_scoring_every_window() -> None:
    """200 queries of 300 s at 2 frames a second; the same windows to 1e-9."""
    frames, grid = 2 * SECONDS, Grid(0.5, 0.25)
    edges = grid.edges(frames, SECONDS)
    values = list(0.2 * torch.randn(200, frames, generator=torch.Generator().manual_seed(0)))
    series = FrameSeries(values, [edges] * len(values), [grid] * len(values))
    seconds: dict[str, list[float]] = {"tables": [], "sums": []}
    for _ in range(3):
        began = time.perf_counter()
        expected = by_whole_tables(values, edges)
        seconds["tables"].append(time.perf_counter() - began)
        began = time.perf_counter()
        located = find_windows([(MomentScore(), series)], Decoding())
        seconds["sums"].append(time.perf_counter() - began)
    for one, other in zip(located, expected, strict=True):
        assert np.abs(np.array(one.windows) - np.array(other)).max() < 1e-9
    ratio = min(seconds["sums"]) / min(seconds["tables"])
    print(f"\n{ratio:.2f} of the time of whole tables ({min(seconds['sums']):.2f} s for 200 queries)")
    assert ratio < 1 / 3


def _mean_loss(score: MomentScore, values: torch.Tensor, labels: torch.Tensor) -> float:
    """Add the gradients of the loss that the fit minimises; return the loss."""
    lengths, total = torch.full((len(values),), values.shape[1]), 0.0
    for part in torch.arange(len(values)).split(FITTED_TOGETHER):
        weights = score.weights(values[part])
        found = log_likelihood(weights.scores, lengths[part], labels[part], weights.enter, weights.leave)
        loss = -found.sum() / values.numel()
        loss.backward()
        total += loss.item()
    return total


def fitted_by_adam(values: torch.Tensor, labels: torch.Tensor) -> MomentScore:
    """The fit by 200 steps of Adam with a learning rate of 0.1, in float32."""
    score = MomentScore()
    optimizer = torch.optim.Adam(score.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        _mean_loss(score, values, labels)
        optimizer.step()
    return score


def test_fitting_a_moment_model_takes_less_than_a_third_of_the_time_of_200_adam_steps() -> None:
    """178 queries of 60 s at 2 frames a second, whose frames in a moment are louder; a loss that is not higher."""
    frames, grid, rng = 120, Grid(0.5, 0.25), np.random.default_rng(0)
    windows = [(float(start), float(start + length)) for start, length in rng.uniform(2, 20, (178, 2))]
    labels = torch.stack([torch.from_numpy(label_frames([window], frames, grid)) for window in windows])
    values = 0.2 * labels + 0.2 * torch.randn(178, frames, generator=torch.Generator().manual_seed(0))
    moments = [Moment(id=str(n), text="?", clip="c", windows=[window]) for n, window in enumerate(windows)]
    series = FrameSeries(list(values), [grid.edges(frames, 60.0)] * 178, [grid] * 178)
    by_adam, by_us = fitted_by_adam(values, labels), fit_score(MomentScore(), series, moments, "a model")
    losses = [_mean_loss(score.double().requires_grad_(), values.double(), labels) for score in (by_us, by_adam)]
    ours, adam = best_seconds(
        [lambda: fit_score(MomentScore(), series, moments, "a model"), lambda: fitted_by_adam(values, labels)], 1
    )
    print(f"\nloss {losses[0]:.6f}, by Adam {losses[1]:.6f}")
    report("fit of four numbers", ours, adam, "200 steps of Adam")
    assert losses[0] <= losses[1] + 1e-6
    assert ours < adam / 3

"""Windows of as many queries as CASTELLA's test split has, and their score."""

import resource
import time

import numpy as np
import pytest
import torch

from submission.metrics.moments import score_moments
from system.models.scores import MomentScore
from system.moments.windows import Decoding, Grid
from system.ranking.windows import QueryFrames, find_windows

pytestmark = pytest.mark.benchmark

QUERIES, SECONDS = 1_347, 300


@pytest.mark.parametrize("by", ["overlap", "thresholds"])
@pytest.mark.parametrize("rate", [1, 2])
def test_moment_search_of_the_size_of_the_castella_test_split_takes_at_most_60_s_and_1_gb(rate, by):
    """Random scores of frames, 1 and 2 a second: within 60 s and 1 GB on two cores; scoring within 1 s."""
    frames, generator, grid = rate * SECONDS, torch.Generator().manual_seed(rate), Grid(1 / rate, 0.5 / rate)
    values = list(0.2 * torch.randn(QUERIES, frames, generator=generator))
    series = [QueryFrames(one, grid, SECONDS) for one in values]
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

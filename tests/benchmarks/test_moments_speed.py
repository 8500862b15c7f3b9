"""Windows of as many queries as CASTELLA's test split has, and their score."""

import resource
import time

import numpy as np
import pytest
import torch

from submission.metrics.moments import score_moments
from system.moments.two_state import moment_posteriors
from system.moments.windows import Decoding, Grid, best_windows

pytestmark = pytest.mark.benchmark

QUERIES, SECONDS = 1_347, 300


@pytest.mark.parametrize("rate", [1, 2])
def test_windows_of_castella(rate: int) -> None:
    """Random scores of frames, 1 and 2 a second: within 60 s and 1 GB on two cores; scoring within 1 s."""
    frames, generator, found = rate * SECONDS, torch.Generator().manual_seed(rate), {}
    edges = Grid(1 / rate, 0.5 / rate).edges(frames, SECONDS)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    for start in range(0, QUERIES, 16):
        count = min(16, QUERIES - start)
        scores = 2 * torch.randn(count, frames, dtype=torch.float64, generator=generator) - 3
        tables = moment_posteriors(scores, torch.full((count,), frames), *torch.tensor([-2.0, -2.0]))
        for number, table in enumerate(tables.numpy(), start):
            found[str(number)] = [list(window) for window in best_windows(table, edges, Decoding())]
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
    print(f"\n{rate} a second: {decoding:.1f} s, {grown:.0f} MiB more; scored in {scoring:.2f} s")
    assert decoding < 60
    assert grown < 1000
    assert scoring < 1

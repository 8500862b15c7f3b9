"""Intervals and the paired test: hand-computed values, slow references, and calibration on random data."""

import itertools
import math

import numpy as np
import pytest

from submission.metrics.intervals import bootstrap_interval, group_numbers, jackknife_interval, paired_difference


def test_jackknife_interval_matches_hand_values_and_the_leave_one_out_estimate():
    # Mean 1/2, standard deviation sqrt(1/2), standard error 1/2; 1.959964 standard errors either way.
    assert jackknife_interval(np.array([0.0, 1.0])) == pytest.approx((0.5 - 0.979982, 0.5 + 0.979982), abs=1e-6)
    assert jackknife_interval(np.full(9, 0.25)) == (0.25, 0.25)
    assert all(math.isnan(bound) for bound in jackknife_interval(np.ones(1)))
    samples = np.random.default_rng(3).random(37)
    left_out = np.array([np.delete(samples, index).mean() for index in range(37)])
    error = math.sqrt(36 / 37 * np.sum((left_out - left_out.mean()) ** 2))
    expected = (samples.mean() - 1.9599640 * error, samples.mean() + 1.9599640 * error)
    assert jackknife_interval(samples) == pytest.approx(expected, abs=1e-8)


def test_bootstrap_matches_the_normal_interval_and_weights_groups_by_their_queries():
    rng = np.random.default_rng(0)
    samples = rng.random(4000)
    assert bootstrap_interval(samples, np.arange(4000)) == pytest.approx(jackknife_interval(samples), abs=2e-3)
    same = np.repeat(samples[:800], 5)  # five captions that succeed together tell as much as one
    low, high = bootstrap_interval(same, np.repeat(np.arange(800), 5))
    one_low, one_high = jackknife_interval(samples[:800])
    assert high - low == pytest.approx(one_high - one_low, rel=0.06)
    assert high - low > 2 * np.diff(jackknife_interval(same))[0]
    # As the means of all queries in the drawn groups, of 1 to 9 queries, one draw after the other.
    rng = np.random.default_rng(5)
    groups = np.repeat(np.arange(9), np.arange(1, 10))
    values, drawn = rng.random(45), np.random.default_rng(0).integers(9, size=(2000, 9))
    means = sorted(np.mean([value for group in row for value in values[groups == group]]) for row in drawn)
    expected = (np.quantile(means, 0.025), np.quantile(means, 0.975))
    assert bootstrap_interval(values, groups) == pytest.approx(expected, abs=1e-12)
    assert bootstrap_interval(np.array([1, 1, 1, 0]), np.array([0, 0, 0, 1])) == (0, 1)
    assert all(math.isnan(bound) for bound in bootstrap_interval(np.array([1, 0]), np.array([0, 0])))


@pytest.mark.parametrize("seed", range(3))
def test_p_value_of_a_difference_matches_enumeration_of_all_swaps(seed):
    rng = np.random.default_rng(seed)
    first, second = rng.random((2, 11)).round(1)
    groups = group_numbers(["a", "a", "b", "c", "d", "d", "d", "e", "f", "g", "h"])
    sums = [sum((second - first)[groups == group]) for group in range(8)]
    ways = [
        abs(sum(sign * part for sign, part in zip(signs, sums, strict=True)))
        for signs in itertools.product((1, -1), repeat=8)
    ]
    exact = sum(way >= abs(sum(sums)) - 1e-12 for way in ways) / len(ways)
    assert paired_difference(first, second, groups).p == pytest.approx(exact, abs=0.015)


def test_differences_of_two_systems_match_hand_values_and_draw_whole_groups():
    found = paired_difference(np.array([0.0, 0.5, 1.0, 0.2]), np.array([0.5, 0.5, 0.9, 0.4]), np.arange(4))
    assert found.mean == pytest.approx(0.15)
    assert (found.better, found.equal, found.worse, found.n_groups) == (2, 1, 1, 4)
    assert found.interval[0] < 0.15 < found.interval[1]
    same = paired_difference(np.ones(5), np.ones(5), np.arange(5))
    assert (same.mean, same.p, same.equal) == (0, 1, 5)
    assert paired_difference(np.ones(1000), np.ones(1000), np.arange(1000)).p == 1, "drawn in several batches"
    assert group_numbers([(3,), (1, 2), (3,), ()]).tolist() == [0, 1, 0, 2]
    rng = np.random.default_rng(6)
    first, second = rng.random((2, 30))
    groups = np.repeat(np.arange(6), 5)
    found = paired_difference(first, second, groups)
    assert found.interval == bootstrap_interval(second - first, groups)
    assert found.interval != bootstrap_interval(second - first, np.arange(30))


@pytest.mark.slow
def test_p_values_of_equal_systems_are_correct_only_if_whole_groups_are_swapped():
    """Two systems of equal quality, each better on some clips: about one in twenty comparisons is below 0.05."""
    rng = np.random.default_rng(1)
    groups = np.repeat(np.arange(40), 5)
    by_group = by_query = 0
    for _ in range(120):
        difference = np.repeat(rng.normal(size=40), 5) + 0.1 * rng.normal(size=200)
        by_group += paired_difference(np.zeros(200), difference, groups).p < 0.05
        by_query += paired_difference(np.zeros(200), difference, np.arange(200)).p < 0.05
    assert by_group <= 13
    assert by_query > 24

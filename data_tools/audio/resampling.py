"""Resample as soxr or resampy.

Resamples by soxr, or by those filters of resampy that were used to compute published features.
"""

import math
import threading
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Resampling = Literal["soxr_hq", "kaiser_best", "kaiser_best_0.2"]
Wave = npt.NDArray[np.float32]
_Samples = npt.NDArray[np.float64]

MIN_PHASES = 320  # of a drifting filter, so that the distance to the nearest phase is below 1/640 of an input sample
MAX_TAPS = 2**24  # of a filter between rates with few common factors: 128 MB


class _Kaiser(NamedTuple):
    """A resampling filter: a sinc with a Kaiser window of shape `beta`.

    Attributes:
        zeros: Number of zero crossings on either side.
        entries: Number of entries, between two zero crossings, in the table of the filter's values.
        beta: Shape of the Kaiser window.
        rolloff: Cutoff frequency of the filter, as a share of half the lower one of both sample rates.
    """

    zeros: int
    entries: int
    beta: float
    rolloff: float


_KAISER: dict[Resampling, _Kaiser] = {
    "kaiser_best": _Kaiser(50, 8192, 12.98458524704002, 0.9173473712608761),
    "kaiser_best_0.2": _Kaiser(64, 512, 14.769656459379492, 0.9475937167399596),
}


def resampled_samples(samples: int, rate: int, wanted: int, how: Resampling) -> int:
    """Return the number of samples (at least 1) of a wave after resampling it from `rate` to `wanted` Hz."""
    exact = Fraction(samples * wanted, rate)
    return max(1, math.floor(exact + Fraction(1, 2) if how == "soxr_hq" else exact))


def filter_period(rate: int, wanted: int, how: Resampling) -> tuple[int, int]:
    """Return the period of a resampling filter, as a number of output samples and a number of input samples.

    After each period, the filter repeats its weights.
    """
    factor = math.gcd(rate, wanted)
    up, down = wanted // factor, rate // factor
    finer = -(-MIN_PHASES // up) if _is_drifting(rate, wanted, how) else 1
    return finer * up, finer * down


def _is_drifting(rate: int, wanted: int, how: Resampling) -> bool:
    """Return whether resampling from `rate` to `wanted` Hz has to imitate the rounding errors of resampy 0.2.2.

    True if the method `how` is kaiser_best_0.2, and the time between two output samples is rounded in float64.
    """
    return how == "kaiser_best_0.2" and Fraction(1 / (wanted / rate)) != Fraction(rate, wanted)


def resampler(rate: int, wanted: int, how: Resampling, periods: int = 0) -> Callable[[Wave, bool], Wave]:
    """Return a function that resamples a wave from `rate` to `wanted` Hz, block by block.

    The function takes the next block, (n,), and whether it is the last block. It returns the output samples that
    are finished. A wave of N samples has N * wanted / rate output samples, however it is divided into blocks: rounded
    to the nearest number by soxr_hq, rounded down by both kaiser methods. At equal rates the wave is unchanged.

    Args:
        rate: Sample rate of the wave in Hz.
        wanted: New sample rate in Hz.
        how: Method. `soxr_hq` is the quality HQ of the library soxr. `kaiser_best` is the filter of that name in
            resampy 0.3 and later; results are equal within 1e-12 in float64. `kaiser_best_0.2` is the filter in
            resampy up to 0.2.2, for features of 2022 and before. It repeats resampy's rounding errors, which grow from
            the beginning of a wave on.
        periods: Length of the part of the wave that was left out before the first block; 0 for a whole wave. The unit
            is the number of input samples after which the filter repeats its weights; see filter_period.
    Raises ValueError for a kaiser filter with over MAX_TAPS weights, between rates with few common factors.
    """
    if rate == wanted:
        return lambda block, last: block
    if how == "soxr_hq":
        import soxr

        stream = soxr.ResampleStream(rate, wanted, 1, dtype="float32", quality="HQ")
        return lambda block, last: stream.resample_chunk(np.ascontiguousarray(block), last=last)
    up, down = filter_period(rate, wanted, how)
    if _is_drifting(rate, wanted, how):
        return _Drifting(up, down, _KAISER[how], periods)
    return _Polyphase(up, down, _KAISER[how])


class _Polyphase:
    """Filter with `up` output samples for `down` input samples. A phase is 1 / up of an input sample."""

    def __init__(self, up: int, down: int, kaiser: _Kaiser, margin: int = 0) -> None:
        """Design the filter: `up` output samples per `down` input samples. margin: Additional input samples to keep."""
        self.up, self.down = up, down
        self.reach, self.weights, self.slopes = _filter_taps(up, down, kaiser)
        self.before = self.reach + margin
        self.kept = np.zeros(self.before)  # input samples before the next output sample, and all later ones
        self.came = self.made = 0

    def __call__(self, block: Wave, last: bool) -> Wave:
        """Resample the next block of a wave; return the finished samples. last: Whether no block follows."""
        self.came += len(block)
        self.kept = np.concatenate([self.kept, block, np.zeros(self.before + self.down if last else 0)])
        periods = max(0, (len(self.kept) - 2 * self.before) // self.down)
        new = self.resample(self.kept[: 2 * self.before + periods * self.down], periods)
        self.kept = self.kept[periods * self.down :]
        if last:
            new = new[: self.came * self.up // self.down - self.made]
        self.made += len(new)
        result: Wave = new.astype(np.float32)
        return result

    def resample(self, old: _Samples, periods: int) -> _Samples:
        """Resample one block of input samples, `old`; return the output samples of `periods` filter periods."""
        return self.filtered(self.weights, old, periods)

    def filtered(self, taps: _Samples, old: _Samples, periods: int, shift: int = 0) -> _Samples:
        """Apply the filter `taps` to a block of input samples, `old`; return the output samples.

        The result has periods * up samples: `up` for each of the `periods` periods of the filter.
        shift: Whole number. Each output sample has the value of the signal at a later time: later by shift / up of the
        time between two input samples.
        """
        from scipy.signal import upfirdn

        ahead = (self.before + self.reach) * self.up + shift
        padding = -ahead % self.down  # so that scipy skips a whole number of output samples
        new: _Samples = upfirdn(np.concatenate([np.zeros(padding), taps]), old, self.up, self.down)
        return new[(ahead + padding) // self.down :][: periods * self.up]


class _Drifting(_Polyphase):
    """Filter that repeats the rounding errors of resampy up to 0.2.2, which change some samples by up to 2e-3.

    resampy computes the time of each output sample by adding up steps in float64. Rounding errors accumulate: at 44.1
    kHz to 1e-6 input samples after 10 s, and to 1e-3 after 5 minutes.

    Some output samples have exactly the time of an input sample: every 160th from 44.1 to 16 kHz. With the errors, such
    a sample is slightly earlier or later. If it is earlier, resampy mirrors its weights: it uses the left half of the
    filter on the right, and the right half on the left. The halves differ slightly, because resampy rounds down the
    number of table entries between two input samples.

    Deviation: resampy computes the weights for its own time, including the error. Here, weights are computed
    only for some times (`up` of them between two input samples), and interpolated linearly for all others. For
    full-scale noise, results differ from those of resampy 0.2.2 by less than 1e-6 in 30 s, 2e-5 in 5 minutes.
    """

    def __init__(self, up: int, down: int, kaiser: _Kaiser, periods: int) -> None:
        """Design the filter. periods: Number of filter periods before the first sample; see filter_period."""
        super().__init__(up, down, kaiser, margin=2)  # for a drift of two samples: hours
        self.step = 1 / (up / down)
        self.clock, self.finished = _clock_after(periods * up, self.step), periods
        edge = np.arange(-self.reach, self.reach + 1) * -up + self.reach * up
        self.wings, self.wing_slopes = (np.append(taps, 0.0)[edge] for taps in (self.weights, self.slopes))

    def resample(self, old: _Samples, periods: int) -> _Samples:
        """Resample one block of input samples with resampy 0.2.2's rounding errors; return the output samples."""
        if not periods:
            return np.zeros(0)
        drift = self._drift(periods)
        shifts = np.rint(drift * self.up).astype(int)
        rest = drift - shifts / self.up
        new = np.zeros(periods * self.up)
        for shift in np.unique(shifts).tolist():
            samples = self.filtered(self.weights, old, periods, shift)
            samples = samples + rest * self.filtered(self.slopes, old, periods, shift)
            new = np.where(shifts == shift, samples, new)
        whole, phase = np.divmod(np.arange(len(new)) * self.down + shifts, self.up)
        early = np.flatnonzero((phase == 0) & (rest < 0))
        first = whole[early] + self.before - self.reach
        windows = np.lib.stride_tricks.sliding_window_view(old, 2 * self.reach + 1)[first]
        mirrored = self.wings[::-1] - rest[early, None] * self.wing_slopes[::-1]
        new[early] = (windows * mirrored).sum(axis=1)
        return new

    def _drift(self, periods: int) -> _Samples:
        """Return the errors of resampy 0.2.2 in the times of the next output samples.

        These samples are the ones that follow the finished samples, for `periods` periods of the filter. An error is
        resampy's time, a sum of rounded steps, minus the exact time. The unit is the time between two input samples.
        """
        count = periods * self.up
        clock = np.add.accumulate(np.concatenate([[self.clock], np.full(count, self.step)]))
        whole, phase = np.divmod(np.arange(count) * self.down, self.up)
        drift: _Samples = clock[:-1] - (self.finished * self.down + whole) - phase / self.up
        self.clock, self.finished = float(clock[-1]), self.finished + periods
        return drift


_CLOCK_BLOCK = 2**20  # output samples between two stored times of a clock
_clocks: dict[float, list[float]] = {}  # by step, the times of a clock every _CLOCK_BLOCK output samples
_growing = threading.Lock()  # held while a list of times grows


def _clock_after(count: int, step: float) -> float:
    """Return the sum of `count` equal steps, added one after another in float64, with the rounding errors."""
    times = _clocks.setdefault(step, [0.0])
    blocks, rest = divmod(count, _CLOCK_BLOCK)
    with _growing:
        while len(times) <= blocks:
            times.append(_sum_of_steps(times[-1], step, _CLOCK_BLOCK))
    return _sum_of_steps(times[blocks], step, rest)


def _sum_of_steps(start: float, step: float, count: int) -> float:
    """Add `step` to `start` `count` times in float64; return the sum, with its rounding errors."""
    return float(np.add.accumulate(np.concatenate([[start], np.full(count, step)]))[-1])


@lru_cache(maxsize=8)
def _filter_taps(up: int, down: int, kaiser: _Kaiser) -> tuple[int, _Samples, _Samples]:
    """Design a resampling filter; return its length on either side, its weights, and the derivative of its weights.

    The filter makes `up` output samples of `down` input samples.

    Returns:
        reach: Number of input samples on either side of an output sample that the filter uses.
        weights: (2 * reach * up,): `up` weights per input sample. The first belongs to the latest input sample, `reach`
            after the output sample; the last to the earliest, `reach` before it.
        slopes: (2 * reach * up,): derivative of each weight with respect to the time of the output sample. The unit of
            time is the time between two input samples.
    Raises ValueError for over MAX_TAPS weights.
    """
    scale = min(1.0, up / down)
    half = kaiser.zeros * kaiser.entries
    step = int(scale * kaiser.entries)  # table entries between input samples; rounded down, as resampy does
    reach = half // step + 1
    if 2 * reach * up > MAX_TAPS:
        raise ValueError(
            f"resampling by {up}/{down} needs a filter that is too long; set resampling to soxr_hq, or convert "
            "the file to 44,100 or 48,000 Hz"
        )
    sinc = kaiser.rolloff * np.sinc(kaiser.rolloff * np.linspace(0, kaiser.zeros, half + 1))
    table = scale * (np.kaiser(2 * half + 1, kaiser.beta)[half:] * sinc)
    distance = scale * np.arange(up) / up
    left, rising = _half_filter(table, step, distance * kaiser.entries)
    right, falling = _half_filter(table, step, (scale - distance) * kaiser.entries)
    slope = scale * kaiser.entries
    return reach, _join_halves(left, right), _join_halves(slope * rising, -slope * falling)


def _join_halves(left: _Samples, right: _Samples) -> _Samples:
    """Join the left and the right half of a filter into one array of weights, in the order that scipy needs.

    left, right: Weights from _half_filter. The result begins with the weights of the latest input sample.
    """
    return np.concatenate([right.T[::-1].ravel(), left.T.ravel()])


def _half_filter(table: _Samples, step: int, entry: _Samples) -> tuple[_Samples, _Samples]:
    """Return the weights of one half of a resampling filter, and the slopes of these weights.

    Both have the shape (up, reach): `up` rows, one per phase, and `reach` columns, one per input sample, the nearest
    first. A phase is a position of the output sample between two input samples. The slope is the difference between the
    next table entry and the current one.

    Args:
        table: The right half of the filter; weights are interpolated linearly in it.
        step: Number of table entries from an input sample to the next one.
        entry: (up,) for each of the `up` phases, the position in `table` that belongs to the nearest input sample.
    """
    slope = np.diff(table, append=table[-1])
    first = entry.astype(int)
    taps = np.arange((len(table) - 1) // step + 1)
    at = np.minimum(first[:, None] + taps * step, len(table) - 1)
    is_inside = taps < ((len(table) - first) // step)[:, None]
    weights = np.where(is_inside, table[at] + (entry - first)[:, None] * slope[at], 0.0)
    return weights, np.where(is_inside, slope[at], 0.0)

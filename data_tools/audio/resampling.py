"""Other sample rates: by soxr, or by the filters of resampy that published features were computed with."""

import math
from collections.abc import Callable
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Resampling = Literal["soxr_hq", "kaiser_best", "kaiser_best_0.2"]
Wave = npt.NDArray[np.float32]

MAX_TAPS = 2**24  # of a filter between rates that share few factors: 128 MB


class _Kaiser(NamedTuple):
    """A sinc under a Kaiser window of shape `beta`: its `zeros` on either side, table entries from one to the next, and
    the share of the lower half rate that it keeps."""

    zeros: int
    entries: int
    beta: float
    rolloff: float


_KAISER: dict[Resampling, _Kaiser] = {
    "kaiser_best": _Kaiser(50, 8192, 12.98458524704002, 0.9173473712608761),
    "kaiser_best_0.2": _Kaiser(64, 512, 14.769656459379492, 0.9475937167399596),
}


def resampler(rate: int, wanted: int, how: Resampling) -> Callable[[Wave, bool], Wave]:
    """A function that takes a wave block by block, each (N,) with whether it is the last, and returns what is ready.

    All together are N * wanted / rate samples (rounded by soxr_hq, rounded down by the others), the same however the
    wave is cut into blocks; at the same rate the wave itself.
    soxr_hq: soxr's HQ. kaiser_best: the filter of that name in resampy 0.3 and later; its own results to 1e-12 in
    float64. kaiser_best_0.2: in resampy up to 0.2.2, which features of 2022 and before were computed with.
    Raises ValueError for a kaiser filter between rates that share so few factors that it has over MAX_TAPS numbers.
    """
    if rate == wanted:
        return lambda block, last: block
    if how == "soxr_hq":
        import soxr

        stream = soxr.ResampleStream(rate, wanted, 1, dtype="float32", quality="HQ")
        return lambda block, last: stream.resample_chunk(np.ascontiguousarray(block), last=last)
    factor = math.gcd(rate, wanted)
    return _Polyphase(wanted // factor, rate // factor, _KAISER[how])


class _Polyphase:
    """`up` new samples for `down` old ones."""

    def __init__(self, up: int, down: int, kaiser: _Kaiser) -> None:
        self.up, self.down = up, down
        self.reach = reach = _reach(up, down, kaiser)
        if 2 * reach * up > MAX_TAPS:
            hint = "set resampling to soxr_hq, or convert the file to 44,100 or 48,000 Hz"
            raise ValueError(f"resampling by {up}/{down} needs a filter that is too long; {hint}")
        left, right = _filter_weights(up, down, kaiser)
        # The filter's centre is placed where what scipy skips in front is a whole number of new samples.
        centre = -(-2 * reach * up // down) * down - reach * up
        self.filter = np.concatenate([np.zeros(centre - reach * up), right.T[::-1].ravel(), left.T.ravel()])
        self.skipped = (centre + reach * up) // down
        self.kept = np.zeros(reach)  # `reach` old samples before the next new one, and what came behind them
        self.came = self.made = 0

    def __call__(self, block: Wave, last: bool) -> Wave:
        from scipy.signal import upfirdn

        self.came += len(block)
        self.kept = np.concatenate([self.kept, block, np.zeros(self.reach + self.down if last else 0)])
        turns = max(0, (len(self.kept) - 2 * self.reach) // self.down)
        new = upfirdn(self.filter, self.kept[: 2 * self.reach + turns * self.down], self.up, self.down)
        new = new[self.skipped :][: turns * self.up]
        self.kept = self.kept[turns * self.down :]
        if last:
            new = new[: self.came * self.up // self.down - self.made]
        self.made += len(new)
        result: Wave = new.astype(np.float32)
        return result


@cache
def _table(kaiser: _Kaiser) -> npt.NDArray[np.float64]:
    """Its right half, (zeros * entries + 1,)."""
    half = kaiser.zeros * kaiser.entries
    sinc = kaiser.rolloff * np.sinc(kaiser.rolloff * np.linspace(0, kaiser.zeros, half + 1))
    return np.kaiser(2 * half + 1, kaiser.beta)[half:] * sinc


def _step(up: int, down: int, kaiser: _Kaiser) -> int:
    """Table entries from an old sample to the next; rounded down, as resampy does."""
    return int(min(1.0, up / down) * kaiser.entries)


def _reach(up: int, down: int, kaiser: _Kaiser) -> int:
    """Old samples on either side that a new one is made of."""
    return kaiser.zeros * kaiser.entries // _step(up, down, kaiser) + 1


def _filter_weights(up: int, down: int, kaiser: _Kaiser) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Weights (up, reach) of the old samples before and behind the new ones, nearest first.

    Row r is for a new sample r / up behind an old one. Weights are interpolated linearly in the table.
    """
    scale = min(1.0, up / down)
    table, step = scale * _table(kaiser), _step(up, down, kaiser)
    slope = np.diff(table, append=table[-1])

    def filter_weight(distance: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        entry = distance * kaiser.entries
        first = entry.astype(int)
        count = (len(table) - first) // step
        taps = np.arange(_reach(up, down, kaiser))
        at = np.minimum(first[:, None] + taps * step, len(table) - 1)
        return np.where(taps < count[:, None], table[at] + (entry - first)[:, None] * slope[at], 0.0)

    distance = scale * np.arange(up) / up
    return filter_weight(distance), filter_weight(scale - distance)

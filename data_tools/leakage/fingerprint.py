"""Audio fingerprints: which recordings are the same sound, whatever its coding, loudness and cut.

Sub-fingerprints of band energy differences after Haitsma & Kalker, "A Highly Robust Audio Fingerprinting System",
ISMIR 2002, section 4. Deviations, all measured on short everyday sounds, where theirs are for music:

* 8 kHz and 33 bands from 100 to 3600 Hz, a window of 0.192 s every 20 ms (theirs: 300 to 2000 Hz, 0.37 s, 11.6 ms);
* the energy of a band is its logarithm over a floor of 0.3 % of the frame's mean, and differences run over 40 ms: with
  linear energies a change of loudness alone sets all bits of a sound with a steep spectrum (waves, ticks, wind);
* frames that say nothing (silence, a steady tone) are left out, so that they match nothing;
* a match is the stretch of one alignment with the most agreement, not a bit error rate below 0.35 over 3 s: a bark of
  a third of a second can be told, and a long stretch may hold more errors.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from data_tools.audio import read_audio

Codes = npt.NDArray[np.uint32]
Places = npt.NDArray[np.int64]

RATE = 8_000  # Hz
WINDOW, HOP = 1536, 160  # samples
STEP = HOP / RATE  # seconds from frame to frame
BANDS = 33  # one more than the bits of a frame
LOWEST, HIGHEST = 100.0, 3600.0  # Hz
LAG = 2  # frames that an energy difference runs over
FLOOR = 0.003  # of a frame's mean band energy: what is further below does not survive lossy coding
LEAST_POWER = 1e-8  # -80 dB full scale, mean over the bands; noise of rms r has r ** 2
LEAST_CHANGE = 0.1  # the median |difference| of a frame that says something, natural logarithm; noise has 0.3

TOLERATED = 8  # differing bits of 32 that a frame may have and still count for neither side
LEAST_SCORE = 40  # of a match; the best of 80,000 pairs of different recordings of ESC-10 reach 19
LEAST_SHARE = 1 / 3  # of the overlap's frames that the matching stretch holds; a common cry or beep holds less

WEAK = 4  # bits a frame, the most likely to be wrong: every combination of them is looked up
REACH = 6  # frames on each side of a looked-up frame that are compared before a whole alignment is
SEED_SCORE = 16  # what these must reach
BLOCK = 1 << 15  # frames looked up at a time
PLACE = np.uint64(0xFFFFFFFF)  # the half of an index entry that says where the frame is


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """What a recording sounds like, a frame every 20 ms, 400 bytes a second.

    bits: (T,) uint32, bit m set where the energy of band m + 1 over that of band m rose.
    weak: (T,) uint32, the WEAK bits whose difference was smallest; 0 where the frame says nothing.
    """

    bits: Codes
    weak: Codes


class Match(NamedTuple):
    """Fingerprints a[first] and b[second] are of the same sound.

    offset: seconds; what is at time t in the first is at t + offset in the second.
    seconds: length of the matching stretch.
    score: sum over its frames of TOLERATED minus the differing bits; LEAST_SCORE or more.
    """

    first: int
    second: int
    offset: float
    seconds: float
    score: int


def fingerprint(path: Path | str) -> Fingerprint | None:
    """The fingerprint of an audio file; None for one that no match could be told of: too short, silent or steady.

    The least a match can rest on is five frames in a row, 0.31 s of sound. Raises AudioError as read_audio does.
    """
    energies = _band_energies(read_audio(path, RATE))
    if len(energies) <= LAG:
        return None
    power = energies.mean(axis=1, keepdims=True)
    shape = np.diff(np.log(energies + FLOOR * power + np.float32(1e-12)), axis=1)
    change = shape[LAG:] - shape[:-LAG]
    size = np.abs(change)
    loud = np.minimum(power[LAG:], power[:-LAG])[:, 0] >= LEAST_POWER
    telling = loud & (np.median(size, axis=1) >= LEAST_CHANGE)
    if telling.sum() * TOLERATED < LEAST_SCORE:
        return None
    weak = np.zeros(size.shape, bool)
    np.put_along_axis(weak, np.argpartition(size, WEAK, axis=1)[:, :WEAK], True, axis=1)
    return Fingerprint(_packed(change > 0), _packed(weak & telling[:, None]))


def near_duplicates(a: Sequence[Fingerprint], b: Sequence[Fingerprint]) -> list[Match]:
    """Every pair (one of a, one of b) that is the same sound, sorted, with its best alignment.

    Frames of the smaller side, with their weak bits both ways, are looked up in a sorted index of the larger side;
    where one is found, the alignment is scored whole. Of ESC-10's 400 recordings, copies as MP3 (16 kHz mono, 32 kb/s),
    a second shorter and 6 dB down are all found, and 92 % of copies at 18 kb/s.
    """
    if not a or not b:
        return []
    if sum(len(one.bits) for one in b) < sum(len(one.bits) for one in a):
        swapped = [Match(m.second, m.first, 0.0 - m.offset, m.seconds, m.score) for m in near_duplicates(b, a)]
        return sorted(swapped)
    small, large = _joined(a), _joined(b)
    alignments = {row for i, j in _seeds(small, large) for row in _alignments(small, large, i, j)}
    best: dict[tuple[int, int], Match] = {}
    for first, second, shift in sorted(alignments):
        match = _match(a[first], b[second], shift)
        if match and ((first, second) not in best or match.score > best[first, second].score):
            best[first, second] = match._replace(first=first, second=second)
    return list(best.values())


class _Joined(NamedTuple):
    """All frames of one side end to end, with REACH empty ones around each recording; starts: of each, rising."""

    bits: Codes
    weak: Codes
    starts: Places


def _joined(prints: Sequence[Fingerprint]) -> _Joined:
    ends = np.cumsum([len(one.bits) + REACH for one in prints]) + REACH
    starts = np.concatenate(([REACH], ends[:-1]))
    bits, weak = np.zeros(ends[-1], np.uint32), np.zeros(ends[-1], np.uint32)
    for start, one in zip(starts, prints, strict=True):
        bits[start : start + len(one.bits)] = one.bits
        weak[start : start + len(one.bits)] = one.weak
    return _Joined(bits, weak, starts)


def _seeds(small: _Joined, large: _Joined) -> Iterator[tuple[Places, Places]]:
    """Places (in small, in large) of frames with the same bits, but for weak bits of small's, a block at a time."""
    # An entry is a frame's bits above its place: one sort, eight bytes a frame.
    index = np.flatnonzero(large.weak).view(np.uint64)
    index |= large.bits[index].astype(np.uint64) << np.uint64(32)
    index.sort()
    telling = np.flatnonzero(small.weak)
    for begin in range(0, len(telling), BLOCK):
        places = telling[begin : begin + BLOCK]
        weak, flips, found = small.weak[places], np.zeros(len(places), np.uint32), []
        for _ in range(1 << WEAK):
            found.append(small.bits[places] ^ flips)
            flips = (flips - weak) & weak  # the next subset of the weak bits
        keys = np.concatenate(found).astype(np.uint64)
        order = np.argsort(keys)  # neighbours in the index one after the other: it is read once, in order
        keys = keys[order] << np.uint64(32)
        low = np.searchsorted(index, keys)
        high = np.searchsorted(index, keys | PLACE, side="right")
        counts = high - low
        firsts = np.repeat(np.tile(places, 1 << WEAK)[order], counts)
        within = np.arange(len(firsts)) - np.repeat(np.cumsum(counts) - counts, counts)
        seconds = index[np.repeat(low, counts) + within] & PLACE
        yield firsts, seconds.astype(np.int64)


def _alignments(small: _Joined, large: _Joined, i: Places, j: Places) -> set[tuple[int, int, int]]:
    """(recording in small, in large, frames that it starts later in large) of the places whose surroundings agree."""
    score = _gain(small, large, i, j)
    for direction in (1, -1):
        run = np.zeros(len(i), np.int64)
        most = run
        for distance in range(1, REACH + 1):
            run = run + _gain(small, large, i + direction * distance, j + direction * distance)
            most = np.maximum(most, run)
        score += most
    i, j = i[score >= SEED_SCORE], j[score >= SEED_SCORE]
    first = np.searchsorted(small.starts, i, "right") - 1
    second = np.searchsorted(large.starts, j, "right") - 1
    shift = (j - large.starts[second]) - (i - small.starts[first])
    return set(zip(first.tolist(), second.tolist(), shift.tolist(), strict=True))


def _gain(small: _Joined, large: _Joined, i: Places, j: Places) -> Places:
    """TOLERATED minus the differing bits of each pair of frames; 0 where one of the two says nothing."""
    return _gains(small.bits[i], small.weak[i], large.bits[j], large.weak[j])


def _gains(bits: Codes, weak: Codes, other_bits: Codes, other_weak: Codes) -> Places:
    gains = TOLERATED - np.bitwise_count(bits ^ other_bits).astype(np.int64)
    return np.where((weak != 0) & (other_weak != 0), gains, 0)


def _match(one: Fingerprint, other: Fingerprint, shift: int) -> Match | None:
    """The best stretch of one alignment, or None when it scores too little or is too small a part of the overlap."""
    begin, end = max(0, -shift), min(len(one.bits), len(other.bits) - shift)
    here, there = slice(begin, end), slice(begin + shift, end + shift)
    gains = _gains(one.bits[here], one.weak[here], other.bits[there], other.weak[there])
    sums = np.concatenate(([0], np.cumsum(gains)))
    lowest = np.minimum.accumulate(sums)
    last = int(np.argmax(sums - lowest))
    score = int(sums[last] - lowest[last])
    start = int(np.flatnonzero(sums[: last + 1] == lowest[last])[-1])
    telling = (one.weak[here] != 0) & (other.weak[there] != 0)
    if score < LEAST_SCORE or telling[start:last].sum() < LEAST_SHARE * telling.sum():
        return None
    return Match(0, 0, shift * STEP, (last - start) * STEP, score)


def _band_energies(wave: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """(frames, BANDS) power; white noise of rms r has about r ** 2 in every band. No frames when the wave is shorter
    than a window."""
    if len(wave) < WINDOW:
        return np.empty((0, BANDS), np.float32)
    window, weights = _analysis()
    frames = np.lib.stride_tricks.sliding_window_view(wave, WINDOW)[::HOP]
    blocks = []
    for begin in range(0, len(frames), 1024):
        spectrum = np.fft.rfft(frames[begin : begin + 1024] * window)
        blocks.append((spectrum.real**2 + spectrum.imag**2).astype(np.float32) @ weights)
    return np.concatenate(blocks)


@cache
def _analysis() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The Hann window (WINDOW,), of unit energy, and how much of each FFT bin is in each band (bins, BANDS)."""
    window = np.hanning(WINDOW + 1)[:-1]
    edges = np.geomspace(LOWEST, HIGHEST, BANDS + 1) * WINDOW / RATE
    bins = np.arange(WINDOW // 2 + 1)[:, None]
    inside = np.minimum(edges[1:], bins + 0.5) - np.maximum(edges[:-1], bins - 0.5)
    weights = np.maximum(inside, 0) / np.diff(edges)
    return (window / np.sqrt((window**2).sum())).astype(np.float32), weights.astype(np.float32)


def _packed(flags: npt.NDArray[np.bool_]) -> Codes:
    """(T, 32) flags as (T,) uint32, flag m as bit m."""
    return np.packbits(flags, axis=1, bitorder="little").view("<u4")[:, 0].astype(np.uint32)

"""Audio fingerprints.

Finds copies of a recording by audio fingerprints, in spite of other coding, loudness, cuts and noise.

A peak is a point in the spectrogram that is louder than its surroundings, so that it survives noise. A fingerprint
contains the peaks of a recording, and pairs of neighbouring peaks. If two recordings have several pairs in common with
the same difference in time (an alignment), their peaks are compared.

Source: Wang, "An Industrial-Strength Audio Search Algorithm", ISMIR 2003. Wang's method is for music. The deviations
are for short everyday sounds, and the effect of each was measured:

* A peak is paired with the six most prominent peaks in the 1.3 s after it; in the paper, with the nearest ones. The
  most prominent peaks depend less on the peaks that noise adds.
* Two sets of peaks are united: the best of every half second, and the best of the whole clip. So a bark in silence has
  enough peaks.
* The score is the number of agreeing peaks, minus the number at the best of 24 wrong alignments of the same sounds; in
  the paper, it is the number of common pairs. Rain agrees with rain, and beeps with beeps, at any alignment. One click
  agrees with another even at a shifted pitch.
* The score is lower if the strongest peaks do not agree. A common cry or beep under another sound is thus no match.

The constants were chosen on the recordings of ESC-10 with even Freesound ids and on invented sounds of 46 kinds. The
recordings with odd ids are for tests. There is one exception: The wrong alignments in frequency were added because two
recordings of sneezes had wrongly matched, and one of these has an odd id.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from data_tools.audio import read_audio

Wave = npt.NDArray[np.float32]
Whole = npt.NDArray[np.int64]
Bins = npt.NDArray[np.uint16]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.floating]

RATE = 12_000  # Hz
WINDOW, HOP = 1536, 240  # samples: 0.128 s every 20 ms
STEP = HOP / RATE  # seconds from frame to frame
LOWEST, HIGHEST = 6, 704  # bins of 7.8 Hz: 50 Hz to 5.5 kHz
MIN_POWER = 4e-6  # minimum of a peak: noise of rms r has 576 r ** 2 in every bin, so that of -82 dB full scale
SURROUNDINGS = (51, 41)  # frames and bins around a peak, for comparison: 1 s, 320 Hz
HALF_SECOND = 25  # frames
PER_HALF_SECOND, PER_SECOND = 15, 35  # peaks: the best of every half second; the best of the clip, by its length
WHITENING = 0.85, 0.7  # share of the surroundings' level to subtract from a peak's, for the two choices

PAIR_FRAMES = 2, 63  # frames between the two peaks of a pair
PAIR_BINS = 127  # maximum bins between them
PAIRS_PER_PEAK = 6  # pairs that start at a peak
CODES = 1 << 24  # ten bits for the bin of the first peak, eight for the bins and six for the frames between the two
MAX_PAIRS = 1 << 24  # of the smaller side, searched at a time: sorting them takes half a gigabyte
MAX_OCCURRENCES = 1000  # a code at more places of the smaller side is not used

MIN_VOTES = 6  # minimum of common pairs at an alignment, plus or minus a frame, to compare peaks there
MAX_ALIGNMENTS = 3  # compared alignments of two recordings, those with the most votes
# Frames and bins of the wrong alignments, for comparison with a match. Two clicks agree at their right alignment; only
# other bins show that they are not the same.
WRONG_SHIFTS = (
    *((sign * frames, 0) for frames in (4, 6, 9, 13, 17, 21, 26, 32, 39, 50) for sign in (1, -1)),
    *((0, sign * bins) for bins in (13, 19) for sign in (1, -1)),
)
STRONGEST_PART = 4  # the strongest quarter of the peaks in the overlap of both recordings
MIN_SHARE = 0.35  # minimum share of the strongest peaks that agree
MIN_SCORE = 10.0  # minimum of a match
SURE_SCORE = 20.0  # minimum noise score of a sure recording, and of a match if both noise scores are < MIN_SCORE

NOISE_DB = -20.0  # level of the noise that a fingerprint must survive
BLOCK = 3000  # frames (a minute) whose spectrum is in memory at a time


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """Fingerprint of a recording with P spectral peaks and H pairs of peaks; 1.3 kB per second of sound.

    Attributes:
        frames: (P,) int32, time of each peak in frames of 20 ms, rising.
        bins: (P,) uint16, frequency of each peak in bins of 7.8 Hz.
        levels: (P,) float16, log10 of the power of each peak.
        codes: (H,) uint32, a code for each pair of peaks, sorted by the first peak of the pair. It contains both
            frequencies and the difference in time.
        counts: (P,) uint8, number of pairs that begin with each peak; the sum of these numbers is H.
        noise_score: Score of the match of the recording with a noisy copy of it (white noise, 20 dB below the sound);
            0.0 without a match.
    """

    frames: np.ndarray
    bins: np.ndarray
    levels: np.ndarray
    codes: np.ndarray
    counts: np.ndarray
    noise_score: float

    @property
    def sure(self) -> bool:
        """Whether a copy of the recording with added noise would be clearly recognised.

        For that, the recording must be neither too short nor too steady.
        """
        return self.noise_score >= SURE_SCORE


class Match(NamedTuple):
    """A match: the same sound in two recordings, one of the list `a` and one of the list `b` of near_duplicates.

    Attributes:
        first: Index of the first recording in `a`.
        second: Index of the second recording in `b`.
        offset: Time t of the first recording is time t + offset of the second recording, in seconds.
        seconds: Time from the first to the last peak that agrees, in seconds.
        score: MIN_SCORE or more. From the number of agreeing peaks, the highest number after a wrong shift in time or
            frequency is subtracted; the difference is multiplied by the share of the strongest peaks that agree.
    """

    first: int
    second: int
    offset: float
    seconds: float
    score: float


def fingerprint(path: Path | str) -> Fingerprint | None:
    """Return the fingerprint of an audio file; None if it is too short, silent or steady for a sure match.

    Raises AudioError as read_audio does.
    """
    wave = read_audio(path, RATE)
    prints = _fingerprint_of_wave(wave)
    if prints is None:
        return None
    noise = np.random.default_rng(0).standard_normal(len(wave), np.float32)
    noise *= wave.std() * 10 ** (NOISE_DB / 20)
    copy = _fingerprint_of_wave((wave + noise)[HOP // 2 :])  # shifted by half a frame from the original
    matches = near_duplicates([prints], [copy]) if copy else []
    prints = replace(prints, noise_score=matches[0].score if matches else 0.0)
    return prints if _score_alignment(prints, prints, 0) else None


def near_duplicates(a: Sequence[Fingerprint], b: Sequence[Fingerprint]) -> list[Match]:
    """Return a match for each pair of a fingerprint in `a` and one in `b` with the same sound, at the best alignment.

    An alignment of two recordings is a difference in time between their sounds.
    The matches are sorted by the index in `a`, then by that in `b`. The list with fewer pairs of peaks is indexed, in
    portions of at most MAX_PAIRS pairs. For each portion, all recordings of the other list are read, and their pairs
    are searched in the index. If two recordings have at least MIN_VOTES pairs in common at an alignment, their peaks
    are compared.
    """
    if not a or not b:
        return []
    if sum(len(one.codes) for one in b) < sum(len(one.codes) for one in a):
        return sorted(Match(m.second, m.first, 0.0 - m.offset, m.seconds, m.score) for m in near_duplicates(b, a))
    best: dict[tuple[int, int], Match] = {}
    for begin, portion in _portions(a):
        index = _Index(portion)
        for second, other in enumerate(b):
            for number, shift in index.alignments(other):
                match, first = _score_alignment(portion[number], other, shift), begin + number
                if match and ((first, second) not in best or match.score > best[first, second].score):
                    best[first, second] = match._replace(first=first, second=second)
    return [best[pair] for pair in sorted(best)]


def _portions(prints: Sequence[Fingerprint]) -> Iterator[tuple[int, list[Fingerprint]]]:
    """Divide fingerprints into groups of at most MAX_PAIRS pairs of peaks; yield (index of the first, group) each."""
    begin, portion, pairs = 0, list[Fingerprint](), 0
    for number, one in enumerate(prints):
        if portion and pairs + len(one.codes) > MAX_PAIRS:
            yield begin, portion
            begin, portion, pairs = number, [], 0
        portion.append(one)
        pairs += len(one.codes)
    if portion:
        yield begin, portion


class _Index:
    """Index from the code of a pair of peaks to the times of all such pairs in several recordings.

    Times are counted as if the recordings were joined end to end. V is the number of different codes in them.

    Attributes:
        starts: One number per recording: its first frame, counted from the beginning of the first recording.
        slots: (CODES,) for each possible code, its number, 1 to V; 0 for a code that no recording has.
        begins: (V + 1,) item n is the index in `positions` of the first time of the code with number n.
        sizes: (V + 1,) item n is how often the code with number n occurs in `positions`. It is 0 for a code with
            more than 1,000 times (MAX_OCCURRENCES), which is not used, and for n = 0.
        positions: Times of all pairs, sorted by code: frames from the beginning of the first recording.
    """

    def __init__(self, prints: Sequence[Fingerprint]) -> None:
        """Index the pairs of peaks of all fingerprints in `prints`."""
        self.starts = np.cumsum([0, *(int(one.frames[-1]) + 1 for one in prints)])[:-1]
        # Each number is a pair's code, then its place: one sort, eight bytes per pair.
        pairs = np.concatenate([one.codes for one in prints]).astype(np.uint64) << np.uint64(32)
        positions = [_first_frames(one) + start for one, start in zip(prints, self.starts, strict=True)]
        pairs |= np.concatenate(positions).astype(np.uint64)
        pairs.sort()
        self.positions = (pairs & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        codes, begins, sizes = np.unique(pairs >> np.uint64(32), return_index=True, return_counts=True)
        self.slots = np.zeros(CODES, np.int32)
        self.slots[codes] = np.arange(1, len(codes) + 1)
        self.begins = np.append(0, begins)
        self.sizes = np.append(0, np.where(sizes <= MAX_OCCURRENCES, sizes, 0))

    def alignments(self, other: Fingerprint) -> list[tuple[int, int]]:
        """Return (recording number, delay of `other` in frames) for each alignment of an indexed recording and `other`.

        At an alignment, both have at least MIN_VOTES pairs of peaks in common with this delay. A recording may have
        several alignments, each with another delay; the best MAX_ALIGNMENTS are returned.
        """
        slots = self.slots[other.codes]
        sizes = self.sizes[slots]
        ends = np.cumsum(sizes)
        which = np.arange(ends[-1]) + np.repeat(self.begins[slots] - ends + sizes, sizes)
        positions = self.positions[which].astype(np.int64)
        begins = positions - np.repeat(_first_frames(other), sizes)  # in other, in frames from the first recording's
        ordered = np.sort(begins)
        if not (ordered[MIN_VOTES - 1 :] - ordered[: 1 - MIN_VOTES] <= 2).any():  # the result for most recordings
            return []
        votes = np.searchsorted(ordered, begins + 1, "right") - np.searchsorted(ordered, begins - 1)
        enough = votes >= MIN_VOTES
        recordings = np.searchsorted(self.starts, positions[enough], "right") - 1
        shifts = self.starts[recordings] - begins[enough]
        ranked = sorted(set(zip(recordings.tolist(), (-votes[enough]).tolist(), shifts.tolist(), strict=True)))
        groups = groupby(ranked, itemgetter(0))
        return [(one, shift) for _, group in groups for one, _, shift in islice(group, MAX_ALIGNMENTS)]


def _score_alignment(one: Fingerprint, other: Fingerprint, shift: int) -> Match | None:
    """Return the match of two recordings if `other` is `shift` frames later; None if too few peaks agree.

    The indices `first` and `second` of the match are 0; the caller sets them.
    """
    here, second_frames = one.frames.astype(np.int64) + shift, other.frames.astype(np.int64)
    first = (here >= second_frames[0] - 1) & (here <= second_frames[-1] + 1)
    here = here[first]
    second = (second_frames >= here[0] - 1) & (second_frames <= here[-1] + 1)
    second_frames = second_frames[second]
    agree, score = _find_agreeing_peaks(second_frames, other.bins[second], here, one.bins[first])
    if score < MIN_SCORE:
        return None
    seconds = float(np.ptp(second_frames[agree])) * STEP
    back, back_score = _find_agreeing_peaks(here, one.bins[first], second_frames, other.bins[second])
    shares = _share_of_strongest(agree, other.levels[second]), _share_of_strongest(back, one.levels[first])
    # A copy under noise has more peaks than its original, some of them among the strongest: its share counts less.
    share = float(np.average(shares, weights=(len(here), len(second_frames))))
    match = Match(0, 0, shift * STEP, seconds, min(score, back_score) * share)
    least = MIN_SCORE if max(one.noise_score, other.noise_score) >= MIN_SCORE else SURE_SCORE
    return match if match.score >= least and share >= MIN_SHARE else None


def _find_agreeing_peaks(frames: Whole, bins: Bins, others: Whole, other_bins: Bins) -> tuple[Flags, int]:
    """Return whether the other recording has each peak too, and the number of common peaks, minus that by chance.

    The other recording's peak may be one frame and one bin away. The number does not count agreement by chance: the
    highest number after a wrong shift of the recording in time or frequency (WRONG_SHIFTS) is subtracted.
    frames, bins: Peaks of the recording. others, other_bins: Frames and bins of the peaks of the other recording.
    """
    late, high = np.max(WRONG_SHIFTS, axis=0) + 1
    first = min(frames[0], others[0]) - late
    grid = np.zeros((max(frames[-1], others[-1]) + late + 1 - first, HIGHEST + 2 * high), bool)
    rows, columns = others - first, other_bins.astype(np.int64) + high
    for frame in (-1, 0, 1):
        for number in (-1, 0, 1):
            grid[rows + frame, columns + number] = True
    rows, columns = frames - first, bins.astype(np.int64) + high
    agree = grid[rows, columns]
    wrong = max(int(grid[rows + frame, columns + number].sum()) for frame, number in WRONG_SHIFTS)
    return agree, int(agree.sum()) - wrong


def _share_of_strongest(agree: Flags, levels: np.ndarray) -> float:
    """Return the share of agreeing peaks among the strongest peaks. agree, levels: One value per peak."""
    count = -(-len(levels) // STRONGEST_PART)
    return float(agree[np.argpartition(-levels, count - 1)[:count]].mean())


def _first_frames(one: Fingerprint) -> Whole:
    """Return the frame of the first peak of each pair, (H,)."""
    return np.repeat(one.frames.astype(np.int64), one.counts)


def _fingerprint_of_wave(wave: Wave) -> Fingerprint | None:
    """Return the fingerprint of a wave; None if it has too few peaks to be recognised."""
    frames, bins, power, around = (np.concatenate(parts) for parts in zip(*_find_peaks(wave), strict=True))
    outstanding = [np.log(power) - share * np.log(around) for share in WHITENING]
    chosen = _best_of_each(frames // HALF_SECOND, outstanding[0], PER_HALF_SECOND)
    chosen[np.argsort(-outstanding[1], kind="stable")[: int(PER_SECOND * len(wave) / RATE)]] = True
    found = _from_peaks(frames[chosen], bins[chosen], power[chosen], outstanding[0][chosen])
    return found if len(found.codes) >= MIN_VOTES and _score_alignment(found, found, 0) else None


def _from_peaks(frames: Whole, bins: Whole, power: Floats, outstanding: Floats) -> Fingerprint:
    """Build a fingerprint from peaks. outstanding: (P,) prominence of each peak, which decides its pairs."""
    first, second = _pair_peaks(frames, bins, outstanding)
    codes = bins[first] << 14 | (bins[second] - bins[first] + PAIR_BINS + 1) << 6 | (frames[second] - frames[first])
    return Fingerprint(
        frames.astype(np.int32),
        bins.astype(np.uint16),
        np.log10(power).astype(np.float16),
        codes.astype(np.uint32),
        np.bincount(first, minlength=len(frames)).astype(np.uint8),
        noise_score=np.inf,
    )


def _best_of_each(groups: Whole, values: Floats, count: int) -> Flags:
    """Return whether each value is among the `count` highest of its group."""
    order = np.lexsort((-values, groups))
    ranked = groups[order]
    chosen = np.zeros(len(groups), bool)
    chosen[order[np.arange(len(groups)) - np.searchsorted(ranked, ranked) < count]] = True
    return chosen


def _pair_peaks(frames: Whole, bins: Whole, outstanding: Floats) -> tuple[Whole, Whole]:
    """Pair each peak with prominent later peaks near it; return the indices of all pairs' first and second peaks."""
    begins = np.maximum(np.searchsorted(frames, frames + PAIR_FRAMES[0]), np.arange(1, len(frames) + 1))
    sizes = np.maximum(0, np.searchsorted(frames, frames + PAIR_FRAMES[1], "right") - begins)
    first = np.repeat(np.arange(len(frames)), sizes)
    second = np.arange(len(first)) - np.repeat(np.cumsum(sizes) - sizes - begins, sizes)
    within = np.abs(bins[second] - bins[first]) <= PAIR_BINS
    first, second = first[within], second[within]
    best = _best_of_each(first, outstanding[second], PAIRS_PER_PEAK)
    return first[best], second[best]


def _find_peaks(wave: Wave) -> Iterator[tuple[Whole, Whole, Floats, Floats]]:
    """Yield the local maxima of a wave's spectrogram, block by block: frames, bins, powers, mean powers around them."""
    from scipy.ndimage import maximum_filter, uniform_filter

    window = np.hanning(WINDOW + 1)[:-1].astype(np.float32)
    padded = np.pad(wave, WINDOW // 2)
    views = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP]
    margin = SURROUNDINGS[0] // 2 + 1
    for begin in range(0, len(views), BLOCK):
        start, end = max(0, begin - margin), min(len(views), begin + BLOCK + margin)
        spectrum = np.fft.rfft(views[start:end] * window)[:, : HIGHEST + 1]
        power = spectrum.real**2 + spectrum.imag**2
        around = uniform_filter(power, SURROUNDINGS, mode="nearest")
        peaks = (power == maximum_filter(power, 5, mode="constant")) & (power >= MIN_POWER)
        frames, bins = np.nonzero(peaks[begin - start : begin - start + BLOCK, LOWEST:HIGHEST])
        at = frames + begin - start, bins + LOWEST
        yield frames + begin, at[1], power[at].astype(np.float64), np.maximum(around[at], 1e-9).astype(np.float64)

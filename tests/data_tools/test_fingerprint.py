"""Fingerprints: peaks, pairs, codes and scores, a reference in plain Python, and sounds without features."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest
import soundfile
from sounds import RATE, Wave, beeps, everyday, noise, tone, with_noise

from data_tools.leakage import fingerprint as module
from data_tools.leakage.fingerprint import Fingerprint, Match, fingerprint, near_duplicates


def made(frames: Sequence[int], bins: Sequence[int], levels: Sequence[float] | None = None) -> Fingerprint:
    """Return a fingerprint of peaks by increasing frame. levels: log10 of their power; default: all equal."""
    power = 10 ** np.asarray(levels if levels is not None else [0.0] * len(frames))
    return module._from_peaks(np.asarray(frames), np.asarray(bins), power, np.arange(len(frames), 0, -1.0))


def apart(count: int, begin: int = 0, lowest: int = 10) -> tuple[list[int], list[int]]:
    """Return peaks without any two alike under any shift: each has its bin."""
    return [begin + 10 * n for n in range(count)], [lowest + 5 * n for n in range(count)]


def unsure(one: Fingerprint) -> Fingerprint:
    return replace(one, noise_score=0.0)


# Peaks, pairs and codes by hand


def test_position_and_power_of_the_fingerprint_peak_of_a_tone_match_hand_values() -> None:
    t = np.arange(60_000) / 12_000
    wave = (0.1 * np.sin(2 * np.pi * 100 * 7.8125 * t) * np.hanning(60_000)).astype(np.float32)
    frames, bins, power, around = (np.concatenate(parts) for parts in zip(*module._find_peaks(wave), strict=True))
    best = int(power.argmax())
    assert (frames[best], bins[best]) == (125, 100)  # the middle, 2.5 s, and the tone's own bin
    assert power[best] == pytest.approx((0.1 * 1536 / 4) ** 2, rel=1e-3)  # half the window's sum, 768, for a sine
    # The two bins next to the tone's have a quarter of its power; so 1.5 of it in 41 bins, and the swell in 51 frames.
    swell = np.mean(np.hanning(60_000)[30_000 + 240 * np.arange(-25, 26)] ** 2)
    assert around[best] == pytest.approx(power[best] * 1.5 / 41 * swell, rel=0.01)


def test_fingerprint_peaks_are_loud_local_maxima_within_the_frequency_limits() -> None:
    def burst(frame: int, number: int, size: float) -> Wave:
        at = np.arange(60_000) - 240 * frame
        return (size * np.exp(-((at / 1500) ** 2)) * np.cos(2 * np.pi * number / 1536 * at)).astype(np.float32)

    def found(*bursts: tuple[int, int, float]) -> set[tuple[int, int]]:
        frames, bins, _, _ = next(module._find_peaks(sum(burst(*one) for one in bursts)))
        return {(int(f), int(b)) for f, b in zip(frames, bins, strict=True)}

    assert {(50, 100), (150, 300)} <= found((50, 100, 0.1), (150, 300, 0.1))
    assert not {(150, 5), (150, 704)} & found((50, 100, 0.1), (150, 5, 0.1), (150, 704, 0.1))
    assert {(150, 6), (150, 703)} <= found((150, 6, 0.1), (150, 703, 0.1))
    weights = np.hanning(1537)[:-1] * np.exp(-(((np.arange(1536) - 768) / 1500) ** 2))
    assert (5e-6 * weights.sum() / 2) ** 2 < module.MIN_POWER < (6e-6 * weights.sum() / 2) ** 2
    assert found((50, 100, 5e-6)) == set()
    assert (50, 100) in found((50, 100, 6e-6))


def test_fingerprint_peaks_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    wave = noise(0, 4)
    whole = [np.concatenate(parts) for parts in zip(*module._find_peaks(wave), strict=True)]
    monkeypatch.setattr(module, "BLOCK", 37)
    parts = list(module._find_peaks(wave))
    assert len(parts) == -(-(len(wave) // 240 + 1) // 37)
    for one, other in zip(whole, zip(*parts, strict=True), strict=True):
        assert np.allclose(one, np.concatenate(other), rtol=1e-3)


def test_fingerprint_keeps_the_most_prominent_peaks_of_each_time_span() -> None:
    groups, values = np.array([0, 0, 0, 1, 1, 2]), np.array([1.0, 3.0, 2.0, 5.0, 4.0, 0.0])
    assert module._best_of_each(groups, values, 1).tolist() == [False, True, False, True, False, True]
    assert module._best_of_each(groups, values, 2).tolist() == [False, True, True, True, True, True]
    assert module._best_of_each(groups[:0], values[:0], 2).tolist() == []


def test_fingerprint_peaks_are_paired_only_within_limits_of_frames_and_bins() -> None:
    frames, bins = np.array([0, 1, 2, 63, 64, 65]), np.array([200, 200, 73, 327, 328, 200])
    first, second = module._pair_peaks(frames, bins, np.arange(6.0))
    # Of the first, 1 is a frame away, too near; 2 and 3 are 127 bins away, as far as may be; 4 and 5 are too late.
    # Of the second, 2 is too near, 4 is 128 bins away, 5 too late. Of the third, 5 is 63 frames and 127 bins away.
    # 3 and 5 are two frames apart, 3 and 4, 4 and 5 only one.
    expected = [(0, 2), (0, 3), (1, 3), (2, 5), (3, 5)]
    assert list(zip(first.tolist(), second.tolist(), strict=True)) == expected


def test_fingerprint_peak_is_paired_with_the_six_strongest_later_peaks() -> None:
    frames, bins = np.arange(0, 27, 3), np.full(9, 50)
    first, second = module._pair_peaks(frames, bins, np.array([0.0, 1, 9, 3, 8, 4, 7, 6, 5]))
    assert second[first == 0].tolist() == [2, 4, 5, 6, 7, 8]
    assert second[first == 5].tolist() == [6, 7, 8]


def test_codes_of_peak_pairs_match_hand_computed_values() -> None:
    one = made([0, 10, 73], [100, 90, 217], [2.0, 1.0, 0.5])
    # Bins -10 and frames 10 further; bins +127 and frames 63 further. The first to the last is 73 frames, too far.
    assert one.codes.tolist() == [100 << 14 | 118 << 6 | 10, 90 << 14 | 255 << 6 | 63]
    assert one.counts.tolist() == [1, 1, 0]
    assert one.levels.tolist() == [2.0, 1.0, 0.5]
    assert made([0, 2], [703, 576]).codes.tolist() == [703 << 14 | 1 << 6 | 2]
    assert max(made([0, 63], [703, 703]).codes) < module.CODES


def test_fingerprint_has_15_peaks_of_each_half_second_and_the_strongest_of_the_whole_clip() -> None:
    wave = np.concatenate([noise(0, 1), noise(1, 1) / 100, np.zeros(RATE, np.float32)])
    one = module._fingerprint_of_wave(wave)
    assert one is not None
    counts = np.bincount(one.frames // 25, minlength=5)
    begun = len(wave) / 12_000
    assert counts[:4].min() >= 15
    assert 15 * len(counts[counts > 0]) <= len(one.frames) <= 15 * len(counts) + 35 * begun
    assert len(one.frames) > 1.3 * 15 * len(counts[counts > 0])  # the whole's own choice adds some


# Scores by hand


def test_fingerprint_peaks_agree_if_at_most_one_frame_and_one_bin_apart() -> None:
    frames, bins = np.array([0, 10, 20, 30]), np.array([50, 100, 150, 200], np.uint16)
    others, other_bins = np.array([1, 9, 22, 30]), np.array([49, 101, 150, 202], np.uint16)
    agree, score = module._find_agreeing_peaks(frames, bins, others, other_bins)
    assert agree.tolist() == [True, True, False, False]  # a frame and a bin off count, two do not
    assert score == 2
    # Laid 4 later, a beep every 4 frames agrees with itself 9 times of 10 (the last is past the end): one more.
    steady = np.arange(0, 40, 4)
    agree, score = module._find_agreeing_peaks(steady, np.full(10, 50, np.uint16), steady, np.full(10, 50, np.uint16))
    assert agree.all()
    assert score == 1


def test_fingerprints_of_different_clicks_have_a_low_score() -> None:
    """A peak in every third bin of one frame: shifted by 13 or 19 bins, as many agree with another click."""
    frames = np.full(60, 5)
    one, other = 10 + 3 * np.arange(60), 11 + 3 * np.arange(60)
    agree, score = module._find_agreeing_peaks(frames, one.astype(np.uint16), frames, other.astype(np.uint16))
    assert agree.all()
    assert score == 60 - 56  # laid 13 bins higher, all but the last four agree


def test_share_of_agreeing_peaks_is_taken_over_the_strongest_third_of_the_peaks() -> None:
    levels = np.array([1, 8, 3, 4, 7, 2, 0, 5, 6], np.float16)  # the strongest three of nine: 8, 7, 6
    agree = np.array([0, 1, 1, 1, 0, 1, 1, 1, 1], bool)
    assert module._share_of_strongest(agree, levels) == pytest.approx(2 / 3)
    assert module._share_of_strongest(agree[:1], levels[:1]) == 0.0


def test_two_matching_fingerprints_have_the_offset_and_length_and_score_computed_by_hand() -> None:
    frames, bins = apart(40)
    one = made(frames, bins)
    assert near_duplicates([one], [one]) == [Match(0, 0, 0.0, pytest.approx(7.8), 40.0)]
    later = made([frame + 30 for frame in frames], bins)
    assert near_duplicates([one], [later]) == [Match(0, 0, pytest.approx(0.6), pytest.approx(7.8), 40.0)]
    assert near_duplicates([later], [one]) == [Match(0, 0, pytest.approx(-0.6), pytest.approx(7.8), 40.0)]
    cut = made([frame - 100 for frame in frames[10:]], bins[10:])
    assert near_duplicates([one], [cut]) == [Match(0, 0, pytest.approx(-2.0), pytest.approx(5.8), 30.0)]
    unlike = made(*apart(40, lowest=13))
    assert near_duplicates([one, unlike], [unlike]) == [Match(1, 0, 0.0, pytest.approx(7.8), 40.0)]
    assert near_duplicates([one], []) == near_duplicates([], [one]) == []


def test_fingerprints_match_from_10_agreeing_peaks_or_from_20_if_both_are_unreliable() -> None:
    ten, nine = (made(*apart(count)) for count in (10, 9))
    assert near_duplicates([ten], [ten]) == [Match(0, 0, 0.0, pytest.approx(1.8), 10.0)]
    assert near_duplicates([nine], [nine]) == []
    # Twice that where neither is sure.
    twenty, fewer = (unsure(made(*apart(count))) for count in (20, 19))
    assert [match.score for match in near_duplicates([twenty], [twenty])] == [20.0]
    assert near_duplicates([fewer], [fewer]) == []
    assert len(near_duplicates([fewer], [replace(fewer, noise_score=10.0)])) == 1
    assert len(near_duplicates([replace(fewer, noise_score=10.0)], [fewer])) == 1
    assert near_duplicates([fewer], [replace(fewer, noise_score=9.9)]) == []


def test_fingerprint_score_is_lower_if_the_strongest_peaks_disagree() -> None:
    """80 peaks; in the other recording, some of the 20 strongest are elsewhere."""
    frames, bins = apart(80)
    one = made(frames, bins, [1.0] * 20 + [0.0] * 60)
    for elsewhere, score in ((0, 80.0), (5, 75 * 0.75), (13, 67 * 0.35), (14, None)):
        moved = [bin + 2 * (n < elsewhere) for n, bin in enumerate(bins)]
        other = made(frames, moved, [1.0] * 20 + [0.0] * 60)
        found = near_duplicates([one], [other])
        assert [match.score for match in found] == ([pytest.approx(score)] if score else [])
        assert all(match.seconds == pytest.approx((79 - elsewhere) * 0.2) for match in found)  # those that agree


def test_share_of_agreeing_peaks_weights_the_recording_with_fewer_peaks_higher() -> None:
    """Noise adds 40 stronger peaks to 80: none of the 30 strongest on that side agree, and all 20 on the other."""
    frames, bins = apart(80)
    levels = [1.0] * 20 + [0.0] * 60
    one = made(frames, bins, levels)
    added = [(frame + 5, 600, 2.0) for frame in frames[:40]]
    other = made(*zip(*sorted([*zip(frames, bins, levels, strict=True), *added]), strict=True))
    share = (0 * 80 + 1 * 120) / 200
    for match in (*near_duplicates([one], [other]), *near_duplicates([other], [one])):
        assert match.score == pytest.approx(80 * share)


def test_score_of_two_fingerprints_is_that_of_the_recording_with_fewer_agreeing_peaks() -> None:
    """Ten peaks of the first are doubled in the second, a frame later: 40 agree in one direction, 30 in the other."""
    frames, bins = apart(30)
    one = made(frames, bins)
    doubled = sorted([*zip(frames, bins, strict=True), *((f + 1, b) for f, b in zip(frames[:10], bins, strict=False))])
    other = made(*zip(*doubled, strict=True))
    assert len(other.frames) == 40
    for match in (*near_duplicates([one], [other]), *near_duplicates([other], [one])):
        assert match.score == 30.0


def test_better_of_two_alignments_of_a_fingerprint_is_returned() -> None:
    """Twelve loud peaks of thirty occur first, and all thirty 10 s later."""
    frames, bins = apart(30)
    levels = [2.0] * 12 + [0.0] * 18
    one = made(frames, bins, levels)
    other = made([*frames[:12], *(frame + 500 for frame in frames)], bins[:12] + bins, [2.0] * 12 + [0.0] * 30)
    assert near_duplicates([one], [made(frames[:12], bins[:12])])[0].score == 12.0
    (match,) = near_duplicates([one], [other])
    assert match.offset == pytest.approx(10)
    assert match.seconds == pytest.approx(5.8)


def test_peak_pair_codes_that_are_too_frequent_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    one = made(*apart(40))
    for limit, found in ((3, 3), (2, 0)):
        monkeypatch.setattr(module, "MAX_OCCURRENCES", limit)
        assert len(near_duplicates([one, one, one], [one] * 4)) == 4 * found


def test_fingerprints_match_only_with_six_common_peak_pairs() -> None:
    """Twelve peaks in two groups, too far apart for pairs; no pair of one group is in common."""
    frames, bins = [0, 10, 20, 30, *range(200, 1000, 100)], [10 + 5 * n for n in range(12)]
    four = made(frames, bins)  # all pairs of four peaks: six
    assert len(four.codes) == 6
    assert len(near_duplicates([four], [four])) == 1
    five = made([0, 10, 20, 100, *range(200, 1000, 100)], bins)  # three pairs of three peaks
    assert len(five.codes) == 3
    assert near_duplicates([five], [five]) == []


def test_peak_pairs_one_frame_apart_count_for_the_same_alignment() -> None:
    """Three pairs at the same place and three a frame later: both alignments have six; two frames apart,
    neither has.
    """
    bins = [10 + 5 * n for n in range(6)]
    index = module._Index([made([0, 10, 20, 200, 210, 220], bins)])
    assert index.alignments(made([0, 10, 20, 201, 211, 221], bins)) == [(0, 0), (0, 1)]
    assert index.alignments(made([0, 10, 20, 202, 212, 222], bins)) == []


def test_only_the_three_alignments_with_the_most_matching_pairs_are_compared() -> None:
    """A loop of four turns and one turn of it: the three best places are compared, the earliest first among equals."""
    frames, bins = apart(20)
    loop = made([frame + 400 * turn for turn in range(4) for frame in frames], bins * 4)
    index = module._Index([loop])
    assert index.alignments(made(frames, bins)) == [(0, -1200), (0, -800), (0, -400)]
    assert index.alignments(made(*apart(20, lowest=300))) == []


# An oracle


def invented(rng: np.random.Generator, count: int) -> set[tuple[int, int]]:
    return set(zip(rng.integers(0, 250, count).tolist(), rng.integers(6, 200, count).tolist(), strict=True))


def without_start(rng: np.random.Generator, peaks: set[tuple[int, int]], first: int) -> Fingerprint:
    ordered = sorted((frame - first, number) for frame, number in peaks if frame >= first)
    return made(*zip(*ordered, strict=True), levels=rng.permutation(len(ordered)) / 100)  # all differ


def test_fingerprint_matches_equal_those_of_a_plain_python_reference() -> None:
    rng = np.random.default_rng(4)
    sounds = [invented(rng, 120) for _ in range(6)]
    a = [without_start(rng, one, 0) for one in sounds]
    b = []
    for number, sound in enumerate(sounds):
        kept = {peak for peak in sound if rng.random() < 0.95 - 0.1 * number}
        b.append(without_start(rng, kept | invented(rng, 20 * number), 13 * number))
    b.append(without_start(rng, sounds[0] | {(f + 250, n) for f, n in sounds[3]}, 0))
    expected = [
        (i, j, shift, pytest.approx(score))
        for i, one in enumerate(a)
        for j, other in enumerate(b)
        if (best := slow_match(one, other))
        for score, shift in [best]
    ]
    assert 6 <= len(expected) < 10
    found = [(m.first, m.second, round(m.offset / module.STEP), m.score) for m in near_duplicates(a, b)]
    assert found == expected
    turned = [(m.second, m.first, -round(m.offset / module.STEP), m.score) for m in near_duplicates(b, a)]
    assert sorted(turned) == expected


def slow_match(one: Fingerprint, other: Fingerprint) -> tuple[float, int] | None:
    """Return (score, shift) of the best of the three alignments with the most common pairs."""
    firsts = [np.repeat(p.frames, p.counts).tolist() for p in (one, other)]
    votes = Counter(
        there - here
        for code, here in zip(one.codes.tolist(), firsts[0], strict=True)
        for other_code, there in zip(other.codes.tolist(), firsts[1], strict=True)
        if code == other_code
    )
    enough = [shift for shift in votes if votes[shift] + votes[shift - 1] + votes[shift + 1] >= 6]
    ranked = sorted(enough, key=lambda shift: (-votes[shift], shift))[:3]
    best = max(((slow_score(one, other, shift), shift) for shift in ranked), key=itemgetter(0), default=(0.0, 0))
    return best if best[0] else None


def slow_score(one: Fingerprint, other: Fingerprint, shift: int) -> float:
    here, there = (
        list(zip((p.frames + late).tolist(), p.bins.tolist(), p.levels.tolist(), strict=True))
        for p, late in ((one, shift), (other, 0))
    )
    here = [peak for peak in here if there[0][0] - 1 <= peak[0] <= there[-1][0] + 1]
    there = [peak for peak in there if here and here[0][0] - 1 <= peak[0] <= here[-1][0] + 1]
    if not here or not there:
        return 0.0
    scores, strongest_share = [], 0.0
    for left, right in ((here, there), (there, here)):
        agree = {
            (late, up): [any(abs(f + late - g) <= 1 and abs(b + up - c) <= 1 for g, c, _ in right) for f, b, _ in left]
            for late, up in ((0, 0), *module.WRONG_SHIFTS)
        }
        at_once = agree.pop((0, 0))
        scores.append(sum(at_once) - max(map(sum, agree.values())))
        strongest = sorted(range(len(left)), key=lambda n: -left[n][2])[: -(-len(left) // 4)]
        strongest_share += np.mean([at_once[n] for n in strongest]) * len(right) / (len(here) + len(there))
    score = min(scores) * strongest_share
    return score if score >= 10 and strongest_share >= 0.35 else 0.0


# From sound


def printed(folder: Path, wave: Wave, rate: int = RATE) -> Fingerprint | None:
    soundfile.write(folder / "x.wav", wave, rate, subtype="FLOAT")
    return fingerprint(folder / "x.wav")


NOTHING: dict[str, Callable[[], Wave]] = {
    "zeros": lambda: np.zeros(5 * RATE, np.float32),
    "offset": lambda: np.full(5 * RATE, 0.5, np.float32),
    "tone": lambda: tone(440),
    "chord": lambda: tone(440) + tone(554) + tone(660),
    "beeps": lambda: beeps(1000, 0.5),
    "quick beeps": lambda: beeps(2000, 0.2),
    "one click": lambda: np.eye(1, 5 * RATE, RATE, dtype=np.float32)[0],
    "rounding noise": lambda: np.random.default_rng(0).integers(-1, 2, 5 * RATE).astype(np.float32) / 32768,
    "0.25 s": lambda: noise(0, 0.25),
    "ten samples": lambda: noise(0, 5)[:10],
    "one sample": lambda: noise(0, 5)[:1],
}


@pytest.mark.parametrize("sound", NOTHING)
def test_silent_and_featureless_sounds_have_no_fingerprint(tmp_path: Path, sound: str) -> None:
    assert printed(tmp_path, NOTHING[sound]()) is None


@pytest.mark.parametrize(
    "wave",
    [
        with_noise(tone(1000), 40, 1),
        with_noise(beeps(1000, 0.5), 40, 1),
        everyday("alarm", 0),
        everyday("hum", 0),
        everyday("wind", 0),
        noise(0, 0.5),
    ],
    ids=["tone", "beeps", "alarm", "hum", "wind", "0.5 s"],
)
def test_steady_or_short_sounds_have_an_unreliable_fingerprint(tmp_path: Path, wave: Wave) -> None:
    one = printed(tmp_path, wave)
    assert one is not None
    assert not one.sure
    assert 0 <= one.noise_score < 20
    assert len(near_duplicates([one], [one])) == 1


def test_noise_score_of_a_fingerprint_equals_the_score_of_its_match_with_a_noisy_copy(tmp_path: Path) -> None:
    wave = everyday("waves", 0)
    one = printed(tmp_path, wave)
    assert one is not None
    assert one.sure
    under = printed(tmp_path, with_noise(wave, 20, 9)[160:])
    assert under is not None
    (match,) = near_duplicates([one], [under])
    assert match.offset == pytest.approx(-0.01, abs=0.011)
    assert match.score == pytest.approx(one.noise_score, rel=0.1)
    raised = printed(tmp_path, wave + 3 * wave.std())  # an offset has no part in how strong the noise is
    assert raised is not None
    assert raised.noise_score == pytest.approx(one.noise_score, rel=0.1)


@pytest.mark.parametrize("kind", ["rain", "waves", "birds", "voice"])
@pytest.mark.parametrize(("decibels", "slope"), [(20, 0.0), (10, 0.0), (10, 3.0)])
def test_noisy_copies_of_a_sound_match_it(tmp_path: Path, kind: str, decibels: float, slope: float) -> None:
    wave = everyday(kind, 0)
    one, copy = printed(tmp_path, wave), printed(tmp_path, with_noise(wave, decibels, 9, slope)[6011:] / 2)
    assert one is not None
    assert copy is not None
    (match,) = near_duplicates([one], [copy])
    assert match.offset == pytest.approx(-6011 / RATE, abs=0.021)
    assert match.seconds > 3


@pytest.mark.parametrize("kind", ["rain", "waves", "wind", "ticks", "birds", "voice", "alarm", "hum"])
def test_fingerprints_of_similar_sounds_do_not_match(tmp_path: Path, kind: str) -> None:
    prints = [one for seed in range(4) if (one := printed(tmp_path, everyday(kind, seed))) is not None]
    assert len(prints) == 4
    assert [(m.first, m.second) for m in near_duplicates(prints, prints)] == [(n, n) for n in range(4)]


def test_silence_around_two_sounds_does_not_make_them_match(tmp_path: Path) -> None:
    quiet = np.zeros(2 * RATE, np.float32)
    one, two, again = (
        printed(tmp_path, np.concatenate(parts))
        for parts in ([quiet, noise(0, 1), quiet], [quiet, noise(1, 1), quiet], [noise(0, 1), quiet])
    )
    assert one is not None
    assert two is not None
    assert again is not None
    assert near_duplicates([one], [two]) == []
    (match,) = near_duplicates([one], [again])
    assert match.offset == pytest.approx(-2.0, abs=0.021)


def test_fingerprint_takes_less_than_two_kilobytes_per_second(tmp_path: Path) -> None:
    one = printed(tmp_path, noise(0, 10))
    assert one is not None
    arrays = (one.frames, one.bins, one.levels, one.codes, one.counts)
    assert [str(array.dtype) for array in arrays] == ["int32", "uint16", "float16", "uint32", "uint8"]
    assert sum(array.nbytes for array in arrays) < 10 * 2000
    assert one.counts.sum() == len(one.codes)
    assert (np.diff(one.frames) >= 0).all()

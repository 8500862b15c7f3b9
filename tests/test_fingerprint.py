"""Fingerprints: scores by hand, an oracle over all alignments, sounds that say nothing, real recordings altered."""

import io
from collections.abc import Callable, Sequence
from multiprocessing.pool import ThreadPool
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import soundfile
import soxr
from data_files import rows

from data_tools.audio import AudioError, read_audio
from data_tools.leakage import fingerprint as module
from data_tools.leakage.fingerprint import Fingerprint, Match, fingerprint, near_duplicates

Wave = npt.NDArray[np.float32]
RATE = 16_000
HALF = 10 ** (-6 / 20)


def codes(seed: int, frames: int) -> npt.NDArray[np.uint32]:
    return np.random.default_rng(seed).integers(0, 1 << 32, frames, dtype=np.uint32)


def made(bits: npt.NDArray[np.uint32], telling: npt.NDArray[np.bool_] | None = None) -> Fingerprint:
    weak = np.full(len(bits), 0b1111, np.uint32)
    return Fingerprint(bits, weak if telling is None else np.where(telling, weak, np.uint32(0)))


def altered(bits: npt.NDArray[np.uint32], flipped: int, first: int = 4) -> npt.NDArray[np.uint32]:
    """The bits with `flipped` of them wrong in every frame, from bit `first` up (0 to 3 are the weak ones)."""
    return bits ^ np.uint32(((1 << flipped) - 1) << first)


# By hand


def test_scores_by_hand() -> None:
    bits = codes(0, 50)
    assert near_duplicates([made(bits)], [made(bits)]) == [Match(0, 0, 0.0, 1.0, 400)]
    assert near_duplicates([made(bits)], [made(altered(bits, 3, first=0))]) == [Match(0, 0, 0.0, 1.0, 250)]
    assert near_duplicates([made(bits)], [made(bits[20:])]) == [Match(0, 0, -0.4, 0.6, 240)]
    assert near_duplicates([made(bits[20:])], [made(bits)]) == [Match(0, 0, 0.4, 0.6, 240)]
    mixed = np.concatenate([codes(1, 30), bits[:25]])
    found = near_duplicates([made(bits), made(codes(2, 90))], [made(codes(3, 9)), made(mixed)])
    assert found == [Match(0, 1, 0.6, 0.5, 200)]
    assert near_duplicates([made(bits)], [made(codes(4, 50))]) == []
    assert near_duplicates([made(bits)], []) == near_duplicates([], [made(bits)]) == []


def test_errors_outweigh_agreement_by_hand() -> None:
    bits = codes(0, 60)
    other = bits.copy()
    other[20:25] = altered(bits[20:25], 16)  # five frames at -8 between 160 and 280
    assert near_duplicates([made(bits)], [made(other)]) == [Match(0, 0, 0.0, 1.2, 160 - 40 + 280)]
    other[:50] = altered(bits[:50], 16)  # 80 behind what costs 400: but ten frames are too little of sixty
    assert near_duplicates([made(bits)], [made(other)]) == []
    telling = np.arange(60) >= 40  # of twenty frames they are enough
    assert near_duplicates([made(bits, telling)], [made(other)]) == [Match(0, 0, 0.0, 0.2, 80)]


def test_the_least_score_by_hand() -> None:
    bits, frames = codes(0, 8), np.arange(8)
    assert near_duplicates([made(bits, frames < 5)], [made(bits)])[0].score == 40
    assert near_duplicates([made(bits, frames < 4)], [made(bits)]) == []
    nothing = made(bits, frames < 0)
    assert near_duplicates([nothing], [nothing]) == near_duplicates([nothing], [made(bits)]) == []


@pytest.mark.parametrize("code", [0, 0xFFFFFFFF])
def test_the_smallest_and_the_largest_code_are_found(code: int) -> None:
    bits = np.full(10, code, np.uint32)
    assert near_duplicates([made(bits)], [made(bits)]) == [Match(0, 0, 0.0, 0.2, 80)]
    assert near_duplicates([made(bits)], [made(~bits)]) == []


def test_weak_bits_are_looked_up_both_ways() -> None:
    bits = codes(0, 40)
    for wrong in range(1, 5):
        found = near_duplicates([made(bits)], [made(altered(bits, wrong, first=0))])
        assert [match.score for match in found] == [40 * (8 - wrong)]
    assert near_duplicates([made(bits)], [made(altered(bits, 1))]) == []  # no frame of it is without a strong error


def test_neighbours_in_memory_are_not_neighbours_in_sound() -> None:
    one, two = codes(0, 30), codes(1, 30)
    both = np.concatenate([one[-3:], two[:3]])
    assert near_duplicates([made(one), made(two)], [made(both)]) == []
    assert len(near_duplicates([made(np.concatenate([one, two]))], [made(both)])) == 1


def test_against_all_alignments() -> None:
    rng = np.random.default_rng(5)
    a = [codes(10 + n, int(rng.integers(25, 120))) for n in range(12)]
    b = [codes(50 + n, int(rng.integers(25, 120))) for n in range(9)]
    for n in range(9):
        length = int(rng.integers(8, 20))
        noise = np.where(rng.random(length) < 0.5, np.uint32(0), np.uint32(1) << rng.integers(0, 32, length))
        b[n][5 : 5 + length] = a[n][-length:] ^ noise.astype(np.uint32)
    found = near_duplicates([made(bits) for bits in a], [made(bits) for bits in b])
    expected = []
    for i, one in enumerate(a):
        for j, other in enumerate(b):
            score, shift, length = max(
                (stretch(one, other, shift) for shift in range(-len(one), len(other))), key=lambda best: best[0]
            )
            if score >= 40:
                expected.append((i, j, round(shift * 0.02, 6), round(length * 0.02, 6), score))
    assert len(expected) == 9
    assert [(m.first, m.second, round(m.offset, 6), round(m.seconds, 6), m.score) for m in found] == expected


def stretch(one: npt.NDArray[np.uint32], other: npt.NDArray[np.uint32], shift: int) -> tuple[int, int, int]:
    """(score, shift, frames) of the best stretch that is a third of the overlap, by trying all."""
    pairs = [(int(one[t]), int(other[t + shift])) for t in range(len(one)) if 0 <= t + shift < len(other)]
    gains = [8 - (left ^ right).bit_count() for left, right in pairs]
    best = (0, shift, 0)
    for start in range(len(gains)):
        total = 0
        for end in range(start, len(gains)):
            total += gains[end]
            if total > best[0]:
                best = (total, shift, end + 1 - start)
    return best if 3 * best[2] >= len(pairs) else (0, shift, 0)


# From sound


def printed(folder: Path, wave: Wave, rate: int = RATE, name: str = "x.wav", **options: object) -> Fingerprint | None:
    soundfile.write(folder / name, wave, rate, **options)
    return fingerprint(folder / name)


def noise(seed: int, seconds: float, slope: float = 0.0) -> Wave:
    """Noise that falls by `slope` dB an octave above 60 Hz, peak 0.5."""
    count = int(seconds * RATE)
    spectrum = np.fft.rfft(np.random.default_rng(seed).normal(size=count))
    wave = np.fft.irfft(spectrum * np.maximum(np.fft.rfftfreq(count, 1 / RATE), 60) ** (-slope / 6.02), count)
    return (wave / np.abs(wave).max() / 2).astype(np.float32)


def test_bits_and_band_energies_by_their_meaning() -> None:
    white = np.random.default_rng(0).normal(0, 0.1, 80_000).astype(np.float32)
    energies = module._band_energies(white)
    assert energies.shape == ((80_000 - 1536) // 160 + 1, 33)
    assert energies.mean() == pytest.approx(0.01, rel=0.05)
    t = np.arange(8000) / 8000
    edges = np.geomspace(100, 3600, 34)
    for band in (0, 16, 32):
        tone = np.sin(2 * np.pi * np.sqrt(edges[band] * edges[band + 1]) * t).astype(np.float32)
        assert set(module._band_energies(tone).argmax(axis=1)) == {band}
    assert module._packed(np.arange(32)[None] % 32 == [[0], [31]]).tolist() == [1, 1 << 31]


def test_a_fingerprint_is_small_and_of_its_length(tmp_path: Path) -> None:
    one = printed(tmp_path, noise(0, 4.0))
    assert one is not None
    assert len(one.bits) == len(one.weak) == (32_000 - 1536) // 160 + 1 - 2
    assert set(np.bitwise_count(one.weak)) == {4}
    assert one.bits.nbytes + one.weak.nbytes <= 400 * 4


SILENT: dict[str, Callable[[], Wave]] = {
    "zeros": lambda: np.zeros(5 * RATE, np.float32),
    "offset": lambda: np.full(5 * RATE, 0.5, np.float32),
    "tone": lambda: (0.3 * np.sin(2 * np.pi * 440 * np.arange(5 * RATE) / RATE)).astype(np.float32),
    "one click": lambda: np.eye(1, 5 * RATE, RATE, dtype=np.float32)[0],
    "rounding noise": lambda: np.random.default_rng(0).integers(-1, 2, 5 * RATE).astype(np.float32) / 32768,
    "0.25 s": lambda: noise(0, 0.25),
    "one sample": lambda: noise(0, 5)[:1],
}


@pytest.mark.parametrize("sound", SILENT)
def test_sounds_that_say_nothing_have_no_fingerprint(tmp_path: Path, sound: str) -> None:
    assert printed(tmp_path, SILENT[sound]()) is None


def test_silence_around_a_sound_matches_no_other_silence(tmp_path: Path) -> None:
    quiet = np.zeros(2 * RATE, np.float32)
    one = printed(tmp_path, np.concatenate([quiet, noise(0, 1), quiet]))
    two = printed(tmp_path, np.concatenate([quiet, noise(1, 1), quiet]))
    again = printed(tmp_path, np.concatenate([noise(0, 1), quiet]))
    assert one is not None
    assert two is not None
    assert again is not None
    assert near_duplicates([one], [two]) == []
    (match,) = near_duplicates([one], [again])
    assert match.offset == pytest.approx(-2.0, abs=0.02)


def everyday(seed: int) -> dict[str, Wave]:
    """Sounds of kinds that are much alike: none is any other's."""
    rng = np.random.default_rng(seed)
    t = np.arange(5 * RATE) / RATE
    swell = np.interp(t, np.linspace(0, 5, 20), np.exp(rng.normal(size=20))).astype(np.float32)
    beeps = (t * 2 + rng.uniform()) % 1 < 0.3
    hit = noise(seed, 0.05, 12) * np.exp(-np.arange(int(0.05 * RATE)) / 200).astype(np.float32)
    ticks = np.zeros(5 * RATE, np.float32)
    for start in range(int(rng.integers(0, 4000)), 5 * RATE - len(hit), RATE // 2):
        ticks[start : start + len(hit)] += hit
    return {
        "rain": noise(seed, 5),
        "waves": noise(seed + 100, 5, 6) * swell / 4,
        "wind": noise(seed + 200, 5, 18) * swell / 4,
        "ticks": ticks,
        "beeps": (0.3 * np.sin(2 * np.pi * 1000 * t) * beeps).astype(np.float32) + noise(seed + 300, 5) / 100,
        "hum": (0.3 * np.sin(2 * np.pi * 100 * t) + 0.1 * np.sin(2 * np.pi * 300 * t)).astype(np.float32)
        + noise(seed + 400, 5) / 1000,
    }


def test_like_sounds_are_not_the_same_sound(tmp_path: Path) -> None:
    for kind in everyday(0):
        prints = [one for seed in range(8) if (one := printed(tmp_path, everyday(seed)[kind])) is not None]
        assert len(prints) >= (0 if kind == "hum" else 5)  # a hum, and some ticks in full silence, say nothing
        assert [(m.first, m.second) for m in near_duplicates(prints, prints)] == [(n, n) for n in range(len(prints))]


def test_what_lossy_coding_leaves_out_does_not_count(tmp_path: Path) -> None:
    low = band(noise(0, 4), 0, 1000)
    one, two = (printed(tmp_path, low + band(noise(seed, 4), 1000, 8000) / 300) for seed in (1, 2))
    assert one is not None
    assert two is not None
    assert len(near_duplicates([one], [two])) == 1  # above 1 kHz, 12 bands of 33, they are 50 dB down and not the same


def band(wave: Wave, lowest: float, highest: float) -> Wave:
    """The wave between two frequencies in Hz."""
    spectrum, frequencies = np.fft.rfft(wave), np.fft.rfftfreq(len(wave), 1 / RATE)
    return np.fft.irfft(np.where((frequencies >= lowest) & (frequencies < highest), spectrum, 0)).astype(np.float32)


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(AudioError, match="no such file"):
        fingerprint(tmp_path / "none.wav")
    (tmp_path / "x.mp3").write_text("<html>")
    with pytest.raises(AudioError, match="cannot be decoded"):
        fingerprint(tmp_path / "x.mp3")


# Real recordings


def coded(folder: Path, number: int, wave: Wave, rate: int = RATE, kind: str = "MP3") -> Fingerprint | None:
    data = io.BytesIO()
    soundfile.write(data, wave, rate, format=kind)
    (folder / f"{number}.{kind.lower()}").write_bytes(data.getvalue())
    return fingerprint(folder / f"{number}.{kind.lower()}")


def at_44100(wave: Wave) -> Wave:
    return soxr.resample(np.stack([wave, 0.5 * wave], axis=1), RATE, 44_100)


CHANGES: dict[str, Callable[[Path, int, Wave], Fingerprint | None]] = {
    "MP3, 1 s off the end, -6 dB": lambda folder, n, x: coded(folder, n, HALF * x[:-RATE]),
    "MP3, 1 s off the start, -6 dB": lambda folder, n, x: coded(folder, n, HALF * x[RATE:]),
    "MP3, 0.37 s off the start": lambda folder, n, x: coded(folder, n, x[int(0.37 * RATE) :]),
    "Ogg, 1 s off the end, +3 dB": lambda folder, n, x: coded(folder, n, 1.41 * x[:-RATE] / 2, kind="OGG"),
    "44.1 kHz stereo MP3": lambda folder, n, x: coded(folder, n, at_44100(HALF * x[:-RATE]), 44_100),
    "48 kHz MP3": lambda folder, n, x: coded(folder, n, soxr.resample(HALF * x[:-RATE], RATE, 48_000), 48_000),
    "MP3 of an MP3": lambda folder, n, x: coded(folder, n, decoded(HALF * x[:-RATE])[1000:]),
    "upside down": lambda folder, n, x: printed(folder, -x, name=f"{n}.wav"),
}
# So many have next to all their sound in the first second: what stays is above -60 dB full scale for 0.7 s or less.
IN_THE_FIRST_SECOND = 12
UPLOADED_TWICE = {
    ("2-28314-A-12.flac", "2-30322-A-12.flac"),  # FireBurning.wav and FireBurning_v2.wav of one uploader
    ("2-28314-B-12.flac", "2-30322-B-12.flac"),
    ("3-151080-A-20.flac", "5-151085-A-20.flac"),  # 01 baby crying hard and long.wav, 01 baby crying hard.wav
}


def decoded(wave: Wave) -> Wave:
    data = io.BytesIO()
    soundfile.write(data, wave, RATE, format="MP3")
    data.seek(0)
    return soundfile.read(data, dtype="float32")[0]


class Recordings:
    """ESC-10 with the fingerprints of all its recordings."""

    def __init__(self, shared: Path) -> None:
        self.table = rows(shared / "data/esc10/esc10.csv")
        self.paths = [shared / "data/esc10/audio" / row["file_name"] for row in self.table]
        self.names = [row["file_name"] for row in self.table]
        self.ids = [row["freesound_id"] for row in self.table]
        with ThreadPool(2) as pool:
            prints = pool.map(fingerprint, self.paths)
        assert None not in prints
        self.prints = [one for one in prints if one is not None]

    def found(self, folder: Path, change: str, numbers: Sequence[int]) -> tuple[int, list[tuple[str, str]]]:
        """How many altered copies are found as their originals, and which as recordings of other Freesound ids."""

        def copy(number: int) -> Fingerprint | None:
            return CHANGES[change](folder, number, soundfile.read(self.paths[number], dtype="float32")[0])

        with ThreadPool(2) as pool:
            copies = {n: one for n, one in zip(numbers, pool.map(copy, numbers), strict=True) if one is not None}
        pairs = [
            (match.first, list(copies)[match.second]) for match in near_duplicates(self.prints, list(copies.values()))
        ]
        others = sorted({self.named(i, j) for i, j in pairs if self.ids[i] != self.ids[j]})
        return sum(i == j for i, j in pairs), others

    def named(self, i: int, j: int) -> tuple[str, str]:
        first, second = sorted((self.names[i], self.names[j]))
        return first, second


@pytest.fixture(scope="module")
def esc10(shared: Path) -> Recordings:
    return Recordings(shared)


def test_recordings_of_different_ids_are_told_apart(esc10: Recordings) -> None:
    matches = [m for m in near_duplicates(esc10.prints, esc10.prints) if m.first < m.second]
    same_id = [m for m in matches if esc10.ids[m.first] == esc10.ids[m.second]]
    assert same_id == []  # takes of one recording are cut from different parts of it: none of the 149 pairs overlaps
    others = {esc10.named(m.first, m.second): m for m in matches}
    # The samples themselves say that these are one recording; any other match would be a false alarm.
    same_samples = {names for names, match in others.items() if correlation(esc10, match) > 0.5}
    assert same_samples == UPLOADED_TWICE
    assert len(others.keys() - UPLOADED_TWICE) <= 1
    assert others.keys() == UPLOADED_TWICE


def correlation(esc10: Recordings, match: Match) -> float:
    """The highest normalised correlation of a second of samples, within 0.05 s of the offset that the match tells."""
    one, other = (read_audio(esc10.paths[number], RATE) for number in (match.first, match.second))
    best = 0.0
    for begin in range(RATE, len(one) - 2 * RATE, RATE // 2):
        left = one[begin : begin + RATE]
        first = begin + int((match.offset - 0.05) * RATE)
        around = other[first : first + RATE + RATE // 10]
        sizes = np.sqrt(np.convolve(around**2, np.ones(RATE, np.float32), "valid") * (left @ left))
        best = max(best, float((np.correlate(around, left, "valid") / sizes).max()))
    return best


def test_forty_altered_copies_are_found(esc10: Recordings, tmp_path: Path) -> None:
    found, others = esc10.found(tmp_path, "MP3, 1 s off the end, -6 dB", range(0, 400, 10))
    assert found == 40
    assert set(others) <= UPLOADED_TWICE


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_all_altered_copies_are_found(esc10: Recordings, tmp_path: Path, change: str) -> None:
    found, others = esc10.found(tmp_path, change, range(400))
    print(f"\n{change}: {found} of 400")
    assert found >= (400 - IN_THE_FIRST_SECOND if "1 s off the start" in change else 396)
    assert len(set(others) - UPLOADED_TWICE) <= 1

"""Excerpts of audio files.

An excerpt equals the same part of the whole file, decoded and resampled, within 1e-6 of full scale. If both sample
rates have no common factor, such as 44,101 and 32,000 Hz, it is equal within 2e-5. Only the excerpt is decoded, with a
margin on both sides.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_tools.audio.parts import after_tags, read_at
from data_tools.audio.read import AudioError, mono_blocks, opened, resampled
from data_tools.audio.resampling import Resampling, Wave, filter_period, resampled_samples, resampler

MARGIN = 400  # samples at the lower rate on each side: more than the reach of every filter of resampling.py
# A frame of an MP3 file may use bits of up to 24 earlier frames (layer III: 255 bytes at 8 kbit/s), and overlaps with
# one more. libmpg123 only decodes some frames before the sample that it jumps to.
MP3_LEAD = 32 * 1152  # samples
# It prints an error for each decoded frame whose earlier bits are missing. That happens in files with few bytes per
# frame, on average or in parts. They are decoded from the start, at 2,000 times their speed, if they are short.
FEW_BYTES, FEW_BYTES_VARIABLE = 170, 400  # constant: 37 kbit/s at 32 kHz; variable: 87 kbit/s
SHORT = 600  # seconds
# The state of an Opus decoder fades. Of 200 excerpts at 6 and 8 kbit/s, 9 still differed (by up to 3e-3) if decoding
# began 2 s before them, and none if it began 4 s before them.
OPUS_LEAD = 6 * 48_000  # samples; libsndfile decodes Opus at 48 kHz


class Sound(NamedTuple):
    """Length, sample rate and seeking properties of an audio file, stored because they take long to find out.

    Attributes:
        samples: Number of samples per channel.
        rate: Sample rate in Hz.
        direct: Whether libsndfile can jump within the unchanged file. If not, each reading repairs the header, or
            decodes the whole file by ffmpeg.
        lead: Number of samples to decode after a jump and to discard, because a decoder needs them to adjust.
    """

    samples: int
    rate: int
    direct: bool
    lead: int = 0

    def samples_at(self, rate: int, resampling: Resampling) -> int:
        """Return the number of samples that read_audio returns for this file at the sample rate `rate` (Hz)."""
        return resampled_samples(self.samples, self.rate, rate, resampling)


def sound_of(path: Path | str) -> Sound:
    """Return the length, sample rate and seeking properties of an audio file, from its headers.

    An MP3 file without a length tag is read completely.

    Raises AudioError for a missing, empty or undecodable file, and for a cut one if its headers show it.
    """
    with opened(path, "quick") as file:
        lead = _mp3_lead(file.path, file.frames, file.samplerate) if file.format == "MP3" else 0
        lead = OPUS_LEAD if file.subtype == "OPUS" else lead
        return Sound(file.frames, file.samplerate, file.name == str(file.path), lead)


def _mp3_lead(path: Path, samples: int, rate: int) -> int:
    """Return how many samples to decode before an MP3 excerpt: MP3_LEAD, or all of a short file of low bit rate."""
    with path.open("rb") as file:
        start, end = after_tags(file, 0), file.seek(0, os.SEEK_END)
        is_variable = b"Xing" in read_at(file, start, 4096)  # a tag that is called Info for a constant bit rate
    bytes_per_frame = (end - start) * (1152 if rate >= 32_000 else 576) / samples
    has_few = bytes_per_frame < (FEW_BYTES_VARIABLE if is_variable else FEW_BYTES)
    return samples if has_few and samples < SHORT * rate else MP3_LEAD


def read_excerpt(
    path: Path | str, sound: Sound, rate: int, first: int, count: int, resampling: Resampling = "soxr_hq"
) -> Wave:
    """Read samples `first` to `first + count` (excluded) of an audio file after conversion to mono and `rate` Hz.

    Args:
        sound: The result of sound_of for this file.
        rate: Sample rate of the result, in Hz.
        first, count: First sample and number of samples of the part, at `rate`. The part must end within the file,
            which has `sound.samples_at(rate)` samples.
    Returns: (count,) float32, full scale = 1.
    Raises: AudioError if the file has changed since sound_of, and for samples that cannot be decoded. ValueError for a
        resampling filter that is too long. OSError for a file that the system cannot read.
    """
    new, old = filter_period(sound.rate, rate, resampling)
    margin = math.ceil(MARGIN * max(1.0, sound.rate / rate))
    periods = max(0, (first * old // new - margin) // old)
    begin = periods * old
    end = min(sound.samples, (first + count) * old // new + margin + 1)
    resample = resampler(sound.rate, rate, resampling, periods)
    parts = list(resampled(_decoded_blocks(path, sound, begin, end), resample))
    skipped = first - periods * new
    wave: Wave = np.concatenate(parts)[skipped : skipped + count]
    return wave


def _decoded_blocks(path: Path | str, sound: Sound, begin: int, end: int) -> Iterator[tuple[Wave, bool]]:
    """Yield samples `begin` to `end` of a file as mono blocks, with True for the last block and False for others."""
    with opened(path, "none" if sound.direct else "quick") as file:
        if (file.frames, file.samplerate) != (sound.samples, sound.rate):
            raise AudioError(f"{path}: changed while it was in use; run the command again")
        done = max(0, begin - sound.lead)
        if done:
            file.seek(done)
        for block, is_last in mono_blocks(file, end - done):
            useful = block[max(0, begin - done) :]
            done += len(block)
            if len(useful):
                yield useful, is_last

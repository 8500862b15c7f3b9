"""Audio files of all formats, made without the program ffmpeg."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import soundfile

# Name of a file, and the encoder, container, bits per second and options of PyAV; None: written by libsndfile.
FORMATS: dict[str, tuple[str, str, int | None, dict[str, str]] | None] = {
    "x.wav": None,
    "x.flac": None,
    "x.aiff": None,
    "x.ogg": None,
    "constant.mp3": ("libmp3lame", "mp3", 128_000, {}),
    "variable.mp3": ("libmp3lame", "mp3", None, {"flags": "+qscale", "global_quality": "472"}),
    "untagged.mp3": ("libmp3lame", "mp3", None, {"flags": "+qscale", "global_quality": "472"}),
    "few_bits.mp3": ("libmp3lame", "mp3", 32_000, {}),
    "x.opus": ("libopus", "ogg", 64_000, {}),
    "x.m4a": ("aac", "ipod", 96_000, {}),
}


def stereo(rate: int, seconds: float) -> np.ndarray:
    """Return a rising tone, another tone on the right, and bursts of noise, (N, 2) float32."""
    t = np.arange(round(rate * seconds)) / rate
    tones = [0.3 * np.sin(2 * np.pi * (200 + 300 * t / seconds) * t), 0.2 * np.sin(2 * np.pi * 1000 * t)]
    noise = 0.1 * np.random.default_rng(rate).uniform(-1, 1, (len(t), 2)) * (np.sin(t) > 0)[:, None]
    return (np.stack(tones, 1) + noise).astype(np.float32)


def write_format(path: Path, wave: np.ndarray, rate: int, **options: Any) -> Path:
    """Write a stereo wave, (N, 2), as a file whose name is in FORMATS; return its path."""
    form = FORMATS[path.name]
    if form is None:
        with soundfile.SoundFile(path, "w", rate, 2, **options) as file:
            for start in range(0, len(wave), 10_000):
                file.write(wave[start : start + 10_000])
        return path
    codec, container, bits, settings = form
    muxing = {"write_xing": "0"} if path.name == "untagged.mp3" else {}  # nothing states its length
    with av.open(str(path), "w", format=container, options=muxing) as out:
        stream = out.add_stream(codec, rate=rate, options=settings)
        stream.layout = "stereo"
        if bits:
            stream.bit_rate = bits
        kind = stream.codec_context.codec.audio_formats[0].name
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(wave.T), "fltp", "stereo")
        frame.sample_rate = rate
        fifo = av.AudioFifo()
        for part in av.AudioResampler(kind, "stereo", rate).resample(frame):
            fifo.write(part)
        done = 0
        while part := fifo.read(stream.codec_context.frame_size or 1024, partial=True):
            part.pts, part.time_base = done, Fraction(1, rate)
            done += part.samples
            out.mux(stream.encode(part))
        out.mux(stream.encode(None))
    return path

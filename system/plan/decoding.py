"""Decoding speed in a plan.

Measure how many crops of audio files this machine decodes per second, and compute how many are needed for training.
"""

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice

import numpy as np

from data_tools.audio import Sound, read_excerpt, sound_of
from data_tools.errors import AudioError
from system.batches.sampler import batches_ahead
from system.experts.waveform import Waveform
from system.features.audio_files import decode_threads
from system.plan.estimates import CORE_FLOPS, GPUS, Estimates
from system.plan.lines import Row
from system.plan.machine import GIB
from system.recipe import schema

TRIED_FILES = 64  # of each source of a stage, evenly spread
TRIED_SECONDS = 1.0


def decoding_lines(name: str, stage: schema.Stage, estimates: Estimates) -> Iterator[Row]:
    """Yield a plan's rows on the crops of audio that are decoded for a stage's batches: memory and speed."""
    ((_, expert),) = estimates.recipe.model.audio.experts.items()
    assert isinstance(expert, Waveform)
    longest = round(estimates.load(stage).longest * expert.rate)
    samples = min(longest, estimates.recipe.model.audio.training_frames or longest)
    ahead = batches_ahead(any(term.needs_relevance for term in stage.losses))
    size = (ahead + 1) * stage.batch_size * samples * np.dtype(expert.dtype).itemsize / GIB
    yield Row(
        "stages", f"{name} frames", f"audio decoded for each batch, {ahead} batches ahead: {size:.1f} GiB of memory"
    )
    contents = [estimates.found[source].clips for source in stage.train.data]
    some = [clip for clips in contents for clip in clips[:: max(1, len(clips) // TRIED_FILES)]]
    threads = estimates.recipe.decode_threads or decode_threads()
    speed = crops_per_second([clip.path for clip in some], expert, samples, threads)
    yield Row("stages", f"{name} decoding", _speed_text(stage, estimates, speed, threads))


def _speed_text(stage: schema.Stage, estimates: Estimates, speed: float | None, threads: int) -> str:
    """Describe the measured `speed` of decoding and the needed speeds; name the GPUs for which it is too slow."""
    flops = estimates.step_flops(stage)
    needed = {f"this CPU's {os.cpu_count() or 1} cores": (os.cpu_count() or 1) * CORE_FLOPS}
    if stage.precision != "float32":
        needed |= {name: gpu.flops for name, gpu in GPUS.items()}
    crops = {name: stage.batch_size * per_second / flops for name, per_second in needed.items()}
    needed_speeds = ", ".join(f"{name} {count:.3g}" for name, count in crops.items())
    needed_speeds = f"needed to keep devices busy, in crops per second: {needed_speeds}"
    if speed is None:
        return f"decoding speed not measured, since no audio file is readable; {needed_speeds}"
    waiting = [name for name, count in crops.items() if count > speed]
    cores = {name: -(-crops[name] * threads // speed) for name in waiting}
    slow = ", ".join(f"{name} (needs {count:.0f} threads)" for name, count in cores.items())
    verdict = f"this is too slow for {slow}" if waiting else "this is fast enough"
    return f"{speed:.3g} crops per second decoded here by {threads} threads (measured); {needed_speeds}; {verdict}"


def crops_per_second(paths: Sequence[str], expert: Waveform, samples: int, threads: int) -> float | None:
    """Measure how many crops of `samples` samples are decoded per second by `threads` threads; None: no readable file.

    The measurement lasts about a second. Samples are counted at the expert's sample rate.
    """
    sounds = {path: sound for path in paths if (sound := _read_sound_info(path))}

    def decode_crop(numbered: tuple[int, str]) -> bool:
        """Decode a crop of a file, whose start depends on the file's number. Returns: Whether the file can be read."""
        number, path = numbered
        length = sounds[path].samples_at(expert.rate, expert.resampling)
        first = number * 7919 % (max(0, length - samples) + 1)
        try:
            read_excerpt(path, sounds[path], expert.rate, first, min(samples, length), expert.resampling)
        except (AudioError, OSError):
            return False
        return True

    began, done, seconds = time.perf_counter(), 0, 0.0
    with ThreadPoolExecutor(threads) as pool:
        todo = enumerate(cycle(sounds))
        while sounds and seconds < TRIED_SECONDS:
            done += sum(pool.map(decode_crop, islice(todo, 4 * threads)))
            seconds = time.perf_counter() - began
    return done / seconds if done else None


def _read_sound_info(path: str) -> Sound | None:
    """Read the rate and the length of an audio file; None if the file is missing or broken."""
    try:
        return sound_of(path)
    except (AudioError, OSError):
        return None

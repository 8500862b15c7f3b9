"""Mix the waves and captions of two clips."""

import numpy as np

# T samples of a clip, U of the one that is added


def mix_waves(wave: np.ndarray, added: np.ndarray, decibels: float, offset: float) -> np.ndarray:
    """Add two waves: `added` is scaled to `decibels` below `wave`; the shorter wave starts at `offset`.

    Waves (T, 1) and (U, 1) int16 -> (max(T, U), 1) int16.
    In training, each wave has at most the encoder's input length, so that their sum is never cut. A sum beyond full
    scale is scaled down to full scale as a whole. Only the result is rounded, to 1 / 32,768.

    decibels: How many dB more power (mean square) the first wave gets than the second, which is scaled. If a wave is
    silent, the waves are not scaled. offset: Start of the shorter wave, in [0, 1): 0 if both begin together, near 1 if
    both end together.
    Source and deviations: the class Mix in augment_settings.py.
    """
    waves = [samples[:, 0].astype(np.float32) for samples in (wave, added)]
    powers = [float(np.square(samples).mean(dtype=np.float64)) for samples in waves]
    gain = np.sqrt(powers[0] / (10 ** (decibels / 10) * powers[1])) if all(powers) else 1.0
    waves[1] *= np.float32(gain)
    spare = abs(len(wave) - len(added))
    first = min(int(offset * (spare + 1)), spare)
    shorter, longer = sorted(waves, key=len)
    longer[first : first + len(shorter)] += shorter
    limits = np.iinfo(np.int16)
    if longer.max() > limits.max or longer.min() < limits.min:
        longer *= np.float32(limits.max / np.abs(longer).max())
    return np.rint(longer).astype(np.int16)[:, None]


def join_captions(caption: str, other: str, by: str) -> str:
    """Join two captions with the text `by`, such as "and", between them.

    The first caption loses the punctuation at its end.

    >>> join_captions("A dog barks.", "It rains.", "and")
    'A dog barks and It rains.'
    """
    return " ".join(part for part in (caption.rstrip(" .,;:!?"), by.strip(), other) if part)

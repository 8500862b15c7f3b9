"""The wave of two clips that are mixed. Without torch."""

import numpy as np

# T samples of a clip, U of the one that is added


def mixed(wave: np.ndarray, added: np.ndarray, decibels: float, offset: float) -> np.ndarray:
    """(T, 1) and (U, 1) int16 -> (max(T, U), 1) int16: both clips, the shorter inside of the longer.

    In training both are parts that are no longer than what the encoder hears, so that nothing is cut of their sum.

    decibels: by how much the mean square of the first is above that of the other as it is added; where one of both is
    silent, the other is added as it is. offset: in [0, 1), where the shorter begins: 0 for both together, near 1 for
    both ending together. A sum beyond full scale is made softer as a whole, to full scale. Rounded to 1 / 32,768 once.
    Source and deviations: Mix in system/recipe/augment.py.
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


def joined(caption: str, other: str, by: str) -> str:
    """Two captions as one: the first without the punctuation at its end, the words between both, the other.

    >>> joined("A dog barks.", "It rains.", "and")
    'A dog barks and It rains.'
    """
    return " ".join(part for part in (caption.rstrip(" .,;:!?"), by.strip(), other) if part)

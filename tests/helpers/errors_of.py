"""Errors of computed arrays."""

from typing import Any

import numpy as np


def relative(found: Any, expected: np.ndarray) -> float:
    """Largest difference by the largest value."""
    assert np.shape(found) == np.shape(expected)
    return float(np.abs(np.asarray(found) - expected).max() / np.abs(expected).max())


def largest(found: Any, expected: np.ndarray) -> float:
    """Largest difference."""
    assert np.shape(found) == np.shape(expected)
    return float(np.abs(np.asarray(found) - expected).max())

"""Errors of computed arrays."""

from typing import Any

import numpy as np


def relative(found: Any, expected: Any) -> float:
    """Largest difference by the largest value."""
    return largest(found, expected) / float(np.abs(np.asarray(expected)).max())


def largest(found: Any, expected: Any) -> float:
    """Largest difference."""
    assert np.shape(found) == np.shape(expected)
    return float(np.abs(np.asarray(found) - np.asarray(expected)).max())

"""Types of arrays.

Types of the numpy arrays in `submission`, and a function that returns the numbers of items in lists.
"""

from collections.abc import Iterable, Sized

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Scores = npt.NDArray[np.float32]
Floats = npt.NDArray[np.floating]  # single or double precision
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def sizes(lists: Iterable[Sized]) -> Ints:
    """Return an array of the numbers of items in the given lists."""
    return np.array([len(each) for each in lists], dtype=np.int64)

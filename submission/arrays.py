"""Types of the arrays that this floor calculates with."""

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Scores = npt.NDArray[np.float32]
Floats = npt.NDArray[np.floating]  # of either precision
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

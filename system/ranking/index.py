"""Index of large pools.

The index finds candidates for the best clips of a query by approximate scores. Only candidates are scored exactly.

The index stores every value of a vector in 8 bits, a quarter of the memory of float32. It compares a query with every
vector, so that the candidates do not depend on the distribution of the vectors.
"""

import logging
from typing import Any

import numpy as np
import torch

from data_tools.cli import counted
from system.models.embeddings import Embeddings, Units

# Q queries, C clips, D embedding

MIN_CLIPS = 50_001  # below, every clip is scored
TRAINED_ON = 100_000  # vectors whose values determine the range of the 8 bits
CLIPS_AT_ONCE = 1 << 16
FASTER_INDEX = 'python -m pip install "faiss-cpu>=1.9,<2" installs an index that is several times as fast'

log = logging.getLogger(__name__)


class VectorIndex:
    """Index of a pool's vectors, with 8 bits per value. Building takes about a second for a million clips."""

    def __init__(self, units: torch.Tensor) -> None:
        """Build the index of vectors (C, D) float32 of length 1 or 0, on the CPU. Raises ImportError without faiss."""
        import faiss

        values = units.numpy()
        self._index: Any = faiss.IndexScalarQuantizer(
            values.shape[1], faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
        )
        self._index.train(values[:: -(-len(values) // TRAINED_ON)])
        for begin in range(0, len(values), CLIPS_AT_ONCE):
            self._index.add(values[begin : begin + CLIPS_AT_ONCE])

    def candidates(self, queries: torch.Tensor, count: int) -> np.ndarray:
        """Return, for each query, the indexes (Q, K) of the K = `count` clips with approximately the highest cosines.

        queries: Vectors (Q, D) of length 1 or 0. If there are fewer than `count` clips, K is their number.
        """
        count = min(count, self._index.ntotal)
        rows: np.ndarray = self._index.search(np.ascontiguousarray(queries.numpy(), np.float32), count)[1]
        return rows


def build_index(pool: Embeddings) -> VectorIndex | None:
    """Build the index of a pool's embeddings; None if no index is built, so that all clips are scored exactly.

    pool: Embeddings of the clips, of length 1 if the score only depends on their directions.
    No index is built for a pool of fewer than MIN_CLIPS clips, or for a pool on a GPU. None is built for a model that
    compares frames with words, or without the package faiss; these two cases are logged.
    """
    if pool.size < MIN_CLIPS or pool.values.device.type != "cpu":
        return None
    clips = counted(pool.size, "clip", ",")
    if not isinstance(pool, Units):
        log.info(
            "this model compares frames with words and can use no index, so every query is scored against all %s", clips
        )
        return None
    try:
        return VectorIndex(pool.values)
    except ImportError:
        log.info("faiss is not installed, so every query is scored against all %s; %s", clips, FASTER_INDEX)
        return None

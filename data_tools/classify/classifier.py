"""Train and apply the classifier.

The classifier of "Take it easy" (DCASE 2022, section 2) is a network on sentence embeddings.

From the paper: three fully connected layers of 256 with ReLU, one sigmoid output, 1 for a caption and 0 for a
description. Our own choices, because the paper does not state them: AdamW, learning rate, batch size and number of
epochs.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import torch
from torch import nn

# N texts, D embedding

WIDTH = 256
LAYERS = 3
LEARNING_RATE = 1e-3
WEIGHT_DECAY = 1e-2
BATCH = 512
_ROWS_AT_ONCE = 8192  # scored together: limits the memory


def make_network(dim: int, seed: int) -> nn.Sequential:
    """Build the classifier: N vectors of D values (N, D) -> logits (N, 1), to which `score` applies the sigmoid.

    Only the seed decides the initial weights and biases, which are uniform within 1 / sqrt(inputs), torch's default for
    linear layers.
    """
    generator = torch.Generator().manual_seed(seed)
    widths = [dim, *[WIDTH] * LAYERS, 1]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        linear = nn.utils.skip_init(nn.Linear, before, after)
        for parameter in linear.parameters():
            nn.init.uniform_(parameter, -(before**-0.5), before**-0.5, generator=generator)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def train(
    vectors: np.ndarray, rows: np.ndarray, labels: np.ndarray, weights: np.ndarray, epochs: int, seed: int
) -> nn.Module:
    """Train a new classifier by weighted cross entropy, on the embeddings in `rows` of `vectors`; return it.

    Training runs on the CPU.

    Args:
        vectors: (R, D) float16 or float32, embeddings of all R texts, memory-mapped or not.
        rows: (N,) row in `vectors` of each of the N training texts.
        labels: (N,) 1 or True for a caption, 0 or False for a description.
        weights: (N,) float32, weight of each training text in the loss.
        seed: Decides the initial weights and the order of the texts.
    """
    rng = np.random.default_rng(seed)
    network = make_network(vectors.shape[1], seed)
    optimiser = torch.optim.AdamW(network.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    for _ in range(epochs):
        order = rng.permutation(len(rows))
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            logits = network(_load_rows(vectors, rows[part]))[:, 0]
            targets = torch.from_numpy(labels[part].astype(np.float32))
            loss = nn.functional.binary_cross_entropy_with_logits(logits, targets, torch.from_numpy(weights[part]))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return network.eval()


def score(network: nn.Module, vectors: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return a trained network's scores of the texts in `rows` of `vectors`: (N,) float32 in [0, 1], 1 for a caption.

    vectors: (R, D), embeddings of all R texts. rows: (N,) row in `vectors` of each of the N texts to score; the rows
    are read by rising number, because the vectors may be mapped from a file.
    """
    order = np.argsort(rows, kind="stable")
    scores = np.empty(len(rows), np.float32)
    with torch.inference_mode():
        for start in range(0, len(order), _ROWS_AT_ONCE):
            part = order[start : start + _ROWS_AT_ONCE]
            scores[part] = torch.sigmoid(network(_load_rows(vectors, rows[part]))[:, 0]).numpy()
    return scores


def _load_rows(vectors: np.ndarray, rows: np.ndarray) -> torch.Tensor:
    """Load the given rows of the stored vectors as a float32 tensor."""
    return torch.from_numpy(vectors[rows].astype(np.float32))


@contextmanager
def network_threads() -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of threads, one per core; inside the block, torch uses one thread per network.

    The layers of the classifier are so small that several threads make it little faster, and much slower if other work
    uses one of the cores.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads) as pool:
            yield pool
    finally:
        torch.set_num_threads(threads)

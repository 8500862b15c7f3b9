"""Average of the weights.

Compute an exponential moving average of a model's weights. It is validated, ranked and exported instead of the weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class WeightAverage:
    """Moving average of the trainable parameters and the statistics (buffers) of a model.

    After update n, counted from 0, the average a becomes d a + (1 - d) w, where w are the weights. The factor is
    d = min(decay, (1 + n) / (10 + n)), so that the initial weights soon have little influence.
    Source: torch.optim.swa_utils. The smaller factor of the first updates is as in TensorFlow's
    tf.train.ExponentialMovingAverage.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Copy the weights as first average. decay: In (0, 1), for a mean over about 1 / (1 - decay) updates."""
        self.decay = decay
        self._current: dict[str, torch.Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._current |= {name: b for name, b in model.named_buffers() if b.is_floating_point() and b.numel()}
        self._average = {name: value.detach().clone() for name, value in self._current.items()}

    @torch.no_grad()
    def update(self, number: int) -> None:
        """Add the model's current weights to the average. number: Number of the update, from 0."""
        decay = min(self.decay, (1 + number) / (10 + number))
        average, current = list(self._average.values()), [value.detach() for value in self._current.values()]
        get_ema_multi_avg_fn(decay)(average, current, number)

    @contextmanager
    def use_average(self) -> Iterator[None]:
        """Context manager that replaces the model's weights by the average for its block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        """Exchange the model's weights and the average without copying them."""
        for name, value in self._current.items():
            value.data, self._average[name] = self._average[name], value.data

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Continue with a stored average. state: The model's state_dict with the average instead of the weights."""
        for name, value in self._average.items():
            value.copy_(state[name])
